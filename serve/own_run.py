"""Replicas that run the `setup` and `run` of a service file as their engine, as SkyServe does.

The gateway forwards every path to the program of the user, and the probe is the probe of the file alone.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from infra import file_variables
from infra.agent.job import SETUP, TEXT_WORDS, Step
from infra.agent.shell import Script
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.job_environment import ACCOUNTS
from infra.records import Carried, PlannedMount
from infra.runs.timing import Say
from infra.settings import Settings, read_dotenv
from infra.transport import sent_folders, shipment
from infra.transport.scan import home_folders
from serve.engines import OWN_RUN
from serve.file_refusals import collecting
from serve.service import Probe, Service, Storage

WORKDIR = "workdir"
MODES = ("MOUNT", "COPY", "MOUNT_CACHED")
IDLE = ("name", "store", "persistent", "type", "config")  # keys of a mount that describe a bucket


def is_wanted(service: Service, engine: str, model: str, own_model: str) -> bool:
    """Return whether the `run` of a file is the engine: on request, or without any model for an engine of ours."""
    return engine == OWN_RUN or bool(service.file.run and not (engine or model or own_model))


def is_one_machine(candidates: Sequence[str], settings: Settings) -> bool:
    """Return whether all replicas run on this machine: without other machines, and in a rehearsal."""
    return tuple(candidates) == ("local",) or bool(settings.rehearsal)


def check(
    service: Service, is_here: bool, settings: Settings, is_own_machine: bool, is_contained: bool = False
) -> None:
    """Raise UsageError for a file whose `run` cannot be the engine of its replicas.

    `is_own_machine`: a replica may run on a machine of the user, and not on a rented machine. `is_contained`: the
    replica has a container with a root of its own.
    """
    file = service.file
    if not file.run.strip():
        raise UsageError(f"--engine {OWN_RUN}: the file has no `run`; add the line `run: COMMAND`")
    planned(service)  # Raises before any machine is rented.
    for path, _, _ in mounts(service):
        if is_own_machine and not is_contained and path.startswith("/"):
            raise UsageError(
                f"file_mounts: {path}: on a machine of your own Slipway writes only to the folder of the replica; "
                f"write ~{path}"
            )
    if is_here and service.policy.most > 1:
        raise UsageError(
            f"on this machine{' (a rehearsal)' if settings.rehearsal else ''} all replicas of `run` would listen on "
            f"port {service.port}; add --replicas 1{'' if settings.rehearsal else ', or --provider NAME'}"
        )
    secrets(service, settings)


def with_full_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the absolute paths of the work folder and the sources of mounts."""
    found, said = dict(document), document.get("file_mounts")
    if folder := document.get("workdir"):
        found["workdir"] = _absolute(folder)
    if isinstance(said, dict):
        found["file_mounts"] = {path: _with_full_source(one) for path, one in said.items()}
    return found


def _with_full_source(said: Any) -> Any:
    if isinstance(said, dict) and isinstance(said.get("source"), str):
        return {**said, "source": _with_full_source(said["source"])}
    return said if not isinstance(said, str) or "://" in said or not said.strip() else _absolute(said)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def with_one_replica(document: dict[str, Any], service: Service, tell: Say) -> dict[str, Any]:
    """Return the document for this machine: all replicas would listen on the same port."""
    if service.policy.most <= 1:
        return document
    tell(f"on this machine one replica runs, because all replicas would listen on port {service.port}")
    section = {key: value for key, value in document["service"].items() if key != "replica_policy"}
    return {**document, "service": {**section, "replicas": 1}}


def secrets(service: Service, settings: Settings) -> dict[str, str]:
    """Return the values of the file's secrets, from the settings, .env and the shell. Raises UsageError."""
    found = _values(service.secrets, settings)
    if accounts := [name for name in service.secrets if name in ACCOUNTS]:
        raise UsageError(
            f"secrets: {', '.join(accounts)}: the key of an account never goes to a machine; remove the line"
        )
    if missing := [name for name in service.secrets if name not in found]:
        has = "has no value; set the variable" if len(missing) == 1 else "have no value; set the variables"
        raise UsageError(f"secrets: {', '.join(missing)} {has} in .env")
    return found


def probe(service: Service, settings: Settings) -> Probe:
    """Return the probe of a service with the values of secrets in place of `$NAME`; a missing secret stays."""
    said = {key: getattr(service.probe, key) for key in ("path", "headers", "post_data")}
    names = [one for one in file_variables.names_in(said) if one in service.secrets]
    if not names:
        return service.probe
    values = _values(names, settings)
    return replace(service.probe, **file_variables.filled(said, values, lambda _: None))


def _values(names: Sequence[str], settings: Settings) -> dict[str, str]:
    """Return the values of secrets, from the settings, .env and the shell, without secrets that have no value."""
    written = read_dotenv(ROOT / ".env")
    found = {
        name: getattr(settings, name.lower(), "") or written.get(name) or os.environ.get(name) or "" for name in names
    }
    return {name: str(value) for name, value in found.items() if value}


def carried(service: Service) -> tuple[Carried, ...]:
    """Return the work folder, and the folders and files of mounts, to send. Raises UsageError."""
    folder = (Carried(name=WORKDIR, source=_absolute(service.file.workdir)),) if service.file.workdir else ()
    sent = {
        name: Carried(name=name, source=str(source.parent if source.is_file() else source), file=_file_of(source))
        for _, source, name in mounts(service)
    }
    return (*folder, *sent.values())


def planned(service: Service) -> tuple[PlannedMount, ...]:
    """Return the files and folders to send, by each path on the replica, after an inspection of all files.

    Raises UsageError if a file cannot be read, or no file of a folder is fit to send.
    """
    sent = {one.name: one for one in carried(service)}
    sizes = {name: shipment.measure(Path(one.source), one.file) for name, one in sent.items()}
    places = [(WORKDIR, "")] if WORKDIR in sent else []
    return tuple(
        PlannedMount(
            source=home_folders.shown(Path(sent[name].source) / sent[name].file),
            at=path,
            files=sizes[name].files,
            bytes=sizes[name].bytes,
            refused=tuple(map(str, sizes[name].refused)),
            pointers=sizes[name].pointers,
        )
        for name, path in (*places, *((name, path) for path, _, name in mounts(service)))
    )


def mounts(service: Service) -> list[tuple[str, Path, str]]:
    """Return path on the replica, source here and name of the sent folder of each mount. Raises UsageError."""
    found: list[tuple[str, Path, str]] = []
    for path, said in service.file.file_mounts.items():
        there = _source_of(path, said)
        known = [name for _, one, name in found if one == there]
        found.append((path, there, known[0] if known else f"mount-{len(found)}"))
    return found


def _source_of(path: str, said: str | Storage) -> Path:
    """Return the file or folder of this machine for a path on the replica. Raises UsageError."""
    where = f"file_mounts: {path}"
    if not path or path in ("/", "~", "~/", ".", "./") or ".." in Path(path).parts:
        raise UsageError(f"{where}: the path of a mount is a folder or file below ~ or the workdir")
    asked = Storage(source=said, mode="COPY") if isinstance(said, str) else said
    source, mode = asked.source, asked.mode.upper()
    if mode not in MODES:
        raise UsageError(f"{where}: mode is {asked.mode!r}; known: {', '.join(MODES)}")
    if isinstance(source, list):
        raise UsageError(f"{where}: several sources cannot be at one path; give each source a path")
    if not source or not source.strip() or "://" in source:
        what = f"fetch {source}" if source else "fetch the files"
        raise UsageError(f"{where}: a service sends files and folders of this machine; {what} in `setup` instead")
    if mode != "COPY":
        raise UsageError(f"{where}: {mode} is for buckets; write {path}: {source}, which copies the files")
    there = Path(_absolute(source)).resolve()
    if not there.exists():
        raise UsageError(f"{where}: {source} does not exist on this machine")
    return there


def without_effect(service: Service) -> list[str]:
    """Return one note per mount with keys that have no effect."""
    found = []
    for path, said in service.file.file_mounts.items():
        if idle := [key for key in IDLE if getattr(said, key, None) is not None]:
            found.append(f"file_mounts: {path}: {', '.join(idle)}: no effect, because Slipway itself sends the files")
    return found


def refusals(service: Service) -> list[str]:
    """Return the refusals of the work folder and of each mount."""
    found: list[str] = []
    if service.file.workdir:
        with collecting(found):
            sent_folders.check_folder("workdir", Path(_absolute(service.file.workdir)))
    for path, said in service.file.file_mounts.items():
        with collecting(found):
            there = _source_of(path, said)
            if there.is_dir():
                sent_folders.check_folder(f"file_mounts: {path}", there)
    return found


def _file_of(source: Path) -> str:
    return source.name if source.is_file() else ""


def release_of(service: Service) -> str:
    """Return an id of the files to send, by names, sizes and times: a changed program is a new version."""
    said = ""
    for one in carried(service):
        root = Path(one.source)
        files = {one.file: (root / one.file).stat()} if one.file else shipment.survey(root)
        said += "".join(f"{one.name} {at} {seen.st_size} {seen.st_mtime_ns}\n" for at, seen in sorted(files.items()))
    return hashlib.sha256(said.encode()).hexdigest()[:16] if said else ""


def steps(service: Service, name: str, is_own_machine: bool, image: str = "") -> tuple[Step, ...]:
    """Return the steps of a replica: `setup` once, then `run` for ever.

    `name`: name of the last step. `image`: image of the container of the steps; "" for none.
    """
    file = service.file
    return tuple(
        Step(one, TEXT_WORDS, "", _script(text, service, is_own_machine, image), max_restarts=0)
        for one, text in ((SETUP, file.setup), (name, file.run))
        if text.strip()
    )


def _script(text: str, service: Service, is_own_machine: bool, image: str) -> dict[str, Any]:
    made = Script(
        text=text,
        name=service.file.name or "",
        workdir=WORKDIR if service.file.workdir else "",
        envs=dict(service.envs),
        mounts=[[name, _file_of(source), path] for path, source, name in mounts(service)],
        own_home=is_own_machine or bool(image),
        image=image,
    )
    return dict(json.loads(json.dumps(asdict(made))))
