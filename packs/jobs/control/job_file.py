"""Strict parser for job files: a YAML task in SkyPilot's format -> `JobFile`.

The parser makes all checks without a provider; each error names the line. A file with `run`, `setup` or
`resources` is a job. Files with only flags are handled elsewhere.
"""

import difflib
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infra import file_variables, strict_yaml
from infra.agent import shell
from infra.errors import UsageError
from infra.strict_yaml import YamlDocument
from packs.jobs.control import conversion, path_variables, schema
from packs.jobs.control.path_variables import UNKNOWN, Values
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.schema import Resources, Storage, TaskFile

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
RESERVED = "SLIPWAY_"  # prefix of variables of Slipway
HEAD_KEYS = {"name", "execution", "primary_tasks", "termination_delay"}  # of a first document without a task
MODES = ("MOUNT", "COPY", "MOUNT_CACHED")
STORES = ("s3", "gcs", "azure", "r2", "ibm", "oci", "nebius", "coreweave", "vastdata", "hf", "volume")
MOST_NODES = 1000
MOST_NAME = 60
FLAGS = {  # flags of launch with the equivalent keys of a job file
    "gpu": "resources.accelerators",
    "num-gpus": "resources.accelerators",
    "nodes": "num_nodes",
    "use-spot": "resources.use_spot",
    "cpus": "resources.cpus",
    "memory": "resources.memory",
    "disk-size": "resources.disk_size",
    "max-price": "resources.max_hourly_cost",
    "run-name": "name",
    "cmd": "run",
    "region": "resources.infra",
    "cloud": "resources.infra",
    "provider": "resources.infra",
    "instance-type": "resources.instance_type",
    "env": "envs",
    "secret": "secrets",
}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file, folder or bucket mounted at a path of the task."""

    path: str
    source: str
    """A local file or folder, or a URL; "" for an empty bucket."""
    mode: str
    name: str = ""
    store: str = ""
    line: int = 0
    sources: tuple[str, ...] = ()
    """The local files and folders of a list, which only an engine mounts at one path."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A git repository as the work folder."""

    url: str
    ref: str = ""
    """Branch, tag or commit; "" for the default branch."""


@dataclass(frozen=True, kw_only=True)
class JobTask:
    """One YAML document of a job file: a task."""

    name: str = ""
    workdir: Path | None = None
    repository: Repository | None = None
    """The repository that `setup` clones, in place of `workdir`."""
    num_nodes: int = 1
    resources: Resources = Resources()
    envs: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables of the task; None marks a value to supply at launch."""
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    setup: str = ""
    run: str = ""
    environment: str = ""
    train: Mapping[str, Any] | None = None
    """Flags of a launch, for a Slipway training."""
    said: TaskFile = TaskFile()
    document: YamlDocument = YamlDocument({})


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """A job: a list of tasks to run in order."""

    where: str
    """File name for error messages."""
    name: str
    tasks: tuple[JobTask, ...]


def key_hint(key: str) -> str:
    """Return a hint about the right kind of file for a top-level key, or "" for an unknown key."""
    if key in schema.IN_SERVICE:
        return "in the file of a service the key stands under `service:`; start the service with: inv serve.up FILE"
    if key in typing.get_type_hints(TaskFile):
        return "this is a key of a job, and a job needs a command; add the line `run: COMMAND`"
    return ""


def load(path: Path) -> JobFile:
    """Read and check a job file. Raise UsageError with the line number of every refusal."""
    refused = Refusals(str(path))
    file = read(path, refused)
    refuse_keys(file, refused)
    refused.raise_all()
    return file


def read(path: Path, refused: Refusals, values: Values = UNKNOWN) -> JobFile:
    """Read a job file and collect the refusals. Raise UsageError for a file that is not YAML."""
    try:
        documents = strict_yaml.documents(path)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    name = ""
    if len(documents) > 1 and isinstance(documents[0].value, dict) and set(documents[0].value) <= HEAD_KEYS:
        head, *documents = documents
        if head.value.get("execution", "serial") != "serial":
            each = " and ".join(f"inv launch {str(one.value.get('name'))}.yaml" for one in documents[:2])
            refused.add(
                head.line("execution"),
                "execution: Slipway runs the tasks of a file one after the other, on the same machines; write serial. "
                f"For tasks that run in parallel, write each task into a separate file: {each}",
            )
        with refused.collecting():
            name = _name(f"{path}: line {head.line('name')}: name", head.value.get("name"))
    tasks = tuple(_task(path, path_variables.filled(one, values, refused), refused) for one in documents)
    if not tasks:
        refused.add(1, "the file is empty; a job has at least `run: COMMAND`")
        tasks = (JobTask(),)
    return JobFile(where=str(path), name=name or tasks[0].name, tasks=tasks)


def refuse_keys(file: JobFile, refused: Refusals, is_engine: bool = False) -> None:
    """Collect the keys of a file that only SkyPilot carries out. `is_engine`: SkyPilot itself runs the job."""
    for task in file.tasks:
        line = task.document.line
        for key, instead in schema.REFUSED.items():
            is_taken = is_engine and key in (*schema.OF_ENGINES, *schema.IN_ENGINE_JOBS)
            if getattr(task.said, key) is not None and not is_taken:
                refused.add(line(key), f"{key}: {instead.replace('FILE', file.where)}")
        for place, one in _resources_of(task.resources) if not is_engine else ():
            for key, instead in schema.REFUSED_RESOURCES.items():
                if getattr(one, key) is not None:
                    refused.add(line(*place, key), f"{key}: {instead}")


def _resources_of(said: Resources) -> Iterator[tuple[strict_yaml.Place, Resources]]:
    """Yield the resources of a task with the place in the document, then each alternative."""
    yield ("resources",), said
    for key in ("any_of", "ordered"):
        for number, one in enumerate(getattr(said, key) or ()):
            yield ("resources", key, number), one


def _task(path: Path, document: YamlDocument, refused: Refusals) -> JobTask:
    if not isinstance(document.value, dict):
        refused.add(document.line(), "expected lines of the form `key: value`, such as `run: ...`")
        return JobTask(document=document)
    if _has_unwritable(document, refused):
        return JobTask(document=document)
    _check_keys(document, document.value, TaskFile, (), refused)
    said = conversion.convert(document, TaskFile, refused)

    def refuse(what: str, *place: str | int) -> None:
        refused.add(document.line(*place), what)

    num_nodes = 1 if said.num_nodes is None else said.num_nodes
    if not 1 <= num_nodes <= MOST_NODES:
        refuse(f"num_nodes is {num_nodes}; expected 1 to {MOST_NODES}", "num_nodes")
    resources = _without_aliases(said.resources or Resources(), ("resources",), refuse)
    _check_resources(resources, ("resources",), refuse)
    workdir, name, repository = None, "", None
    if isinstance(said.workdir, dict):
        repository = Repository(url=said.workdir.get("url", ""), ref=said.workdir.get("ref", ""))
        if unknown := sorted({*said.workdir} - {"url", "ref"}) or ([] if repository.url.strip() else ["no url"]):
            refuse(f"workdir: {unknown[0]}: expected a folder, or url and ref of a git repository", "workdir")
    elif said.workdir is not None and not file_variables.NAMED.search(said.workdir):
        with refused.collecting():
            workdir = folder(f"{path}: line {document.line('workdir')}: workdir", _path(path, said.workdir))
    has_text = any(str(document.value.get(key) or "").strip() for key in ("run", "setup"))
    if said.slipway.train is None and not has_text:
        refuse(_nothing_to_run(said, resources))
    for key in ("run", "setup", "workdir", "file_mounts", "secrets") if said.slipway.train is not None else ():
        if getattr(said, key):
            refuse(
                f"{key}: slipway.train describes a training of Slipway, which does not use {key}; remove the key", key
            )
    if said.slipway.environment not in ("", "train"):
        refuse(f"slipway.environment is {said.slipway.environment!r}; known: train", "slipway", "environment")
    secrets = path_variables.secrets_in(document)
    envs = path_variables.values_in(document, "envs")
    for section, names in (("envs", envs), ("secrets", secrets)):
        for one in names:
            if not VARIABLE.fullmatch(one):
                refuse(f"{section}: {one!r} is not a valid name of a variable", section, one)
            if one.startswith(RESERVED) or one in shell.TASK_VARIABLES:
                refuse(
                    f"{section}: {one}: Slipway sets this variable for each task; choose a different name", section, one
                )
    for one in sorted(set(envs) & set(secrets)):
        refuse(f"{one} is both in envs and in secrets; remove the line under envs", "secrets", one)
    with refused.collecting():
        name = _name(f"{path}: line {document.line('name')}: name", said.name)
    return JobTask(
        name=name,
        workdir=workdir,
        repository=repository,
        num_nodes=num_nodes,
        resources=resources,
        envs=envs,
        secrets=secrets,
        mounts=_mounts(path, said, refused, document),
        setup=said.setup or "",
        run=said.run or "",
        environment=said.slipway.environment,
        train=said.slipway.train,
        said=said,
        document=document,
    )


def _without_aliases(said: Resources, at: strict_yaml.Place, refuse: Callable[..., None]) -> Resources:
    """Return the resources with the usual key in place of each alias."""
    found: dict[str, Any] = {}
    for alias, key in schema.ALIASES.items():
        value = getattr(said, alias)
        if value is not None and getattr(said, key) is not None:
            refuse(f"{alias} and {key} exclude each other; keep {key}", *at, alias)
        elif value is not None:
            found |= {key: value, alias: None}
    for key in ("any_of", "ordered"):
        several = getattr(said, key) or ()
        if several:
            found[key] = [_without_aliases(one, (*at, key, number), refuse) for number, one in enumerate(several)]
    return replace(said, **found)


def _nothing_to_run(said: TaskFile, resources: Resources) -> str:
    """Return the refusal of a task without a command; for a file of resources alone, with the command that rents."""
    if said.service is not None:
        return "the file describes a service without a command; start the service with: inv serve.up FILE"
    if said.resources is None:
        return "the task has neither `run` nor `setup`, so nothing would run; add the line `run: COMMAND`"
    from packs.jobs.control import machine_words

    flags = machine_words.of(resources)
    pod = f", or rent the machine without work: inv pod.create {flags}" if flags else ""
    return f"the task has neither `run` nor `setup`, so nothing would run; add the line `run: COMMAND`{pod}"


def _has_unwritable(document: YamlDocument, refused: Refusals) -> bool:
    """Return whether a text has a character that no file can hold, and collect the lines."""
    found = False
    for place in document.lines:
        for text in (*place[-1:], document.texts.get(place, "")):
            if isinstance(text, str) and UNWRITABLE.search(text):
                found = True
                refused.add(
                    document.line(*place),
                    "the text has a character that a file cannot hold: NUL, or half of a pair (\\ud800)",
                )
    return found


def _check_keys(document: YamlDocument, body: Any, kind: type, at: strict_yaml.Place, refused: Refusals) -> None:
    hints = typing.get_type_hints(kind)
    for key, value in body.items():
        place = (*at, key)
        if key not in hints:
            flag = str(key).replace("_", "-")
            hint = near(str(key), hints)
            if not at and key in schema.IN_SERVICE:
                hint = key_hint(str(key))
            if not at and key in schema.OLDER:
                hint = schema.OLDER[key]
            if at == ("slipway",) and "service" in document.value:
                hint = "this is a key of a service; start the service with: inv serve.up FILE"
            if not at and flag in FLAGS:
                hint = f"in a job file write {FLAGS[flag]}; or add the flag --{flag}"
            line = document.line(*place) if isinstance(key, str) else document.line(*at)
            refused.add(line, f"unknown key {'.'.join(map(str, place))!r}; {hint}")
            continue
        record = schema.inner(hints[key])
        if record is None:
            continue
        parts: list[tuple[str | int | None, Any]]
        if isinstance(value, list):
            parts = [(number, one) for number, one in enumerate(value)]
        elif isinstance(value, dict) and schema.is_mapping_of_records(hints[key]):
            parts = list(value.items())
        else:
            parts = [(None, value)]
        for name, part in parts:
            if isinstance(part, dict):
                _check_keys(document, part, record, place if name is None else (*place, name), refused)


def _check_resources(said: Resources, at: strict_yaml.Place, refuse: Callable[..., None]) -> None:
    if said.any_of is not None and said.ordered is not None:
        refuse("any_of and ordered exclude each other; keep one of them", *at, "ordered")
    for key in ("any_of", "ordered"):
        several = getattr(said, key)
        if several == []:
            refuse(f"{key} is empty", *at, key)
        for number, one in enumerate(several or ()):
            if one.any_of is not None or one.ordered is not None:
                refuse(f"{key} within {key}", *at, key, number)
            _check_resources(one, (*at, key, number), refuse)
    if said.max_hourly_cost is not None and not 0 < said.max_hourly_cost < float("inf"):
        refuse(f"max_hourly_cost is {said.max_hourly_cost:g}; expected more than 0", *at, "max_hourly_cost")
    for port in said.ports if isinstance(said.ports, list) else [] if said.ports is None else [said.ports]:
        ends = [int(one) for one in str(port).split("-") if one.isdecimal() and len(one) <= 5]
        if len(ends) != str(port).count("-") + 1 or len(ends) > 2 or ends != sorted(ends) or not 0 < max(ends) < 65536:
            refuse(f"ports: {port!r} is neither a port nor a range such as 8000-8010", *at, "ports")
    recovery = said.job_recovery
    if isinstance(recovery, schema.Recovery):
        codes = recovery.recover_on_exit_codes
        for code in codes if isinstance(codes, list) else [codes]:
            if not 0 <= code <= 255:
                refuse(f"recover_on_exit_codes: {code} is not an exit code (0 to 255)", *at, "job_recovery")
        if recovery.max_restarts_on_errors < 0:
            refuse("max_restarts_on_errors cannot be negative", *at, "job_recovery", "max_restarts_on_errors")


def _mounts(path: Path, said: TaskFile, refused: Refusals, document: YamlDocument) -> tuple[Mount, ...]:
    found = []
    for wanted, one in (said.file_mounts or {}).items():
        with refused.collecting():
            found.append(_mount(path, wanted, one, document))
    return tuple(found)


def _mount(path: Path, wanted: str, one: str | Storage, document: YamlDocument) -> Mount:
    """Return the mount at the path `wanted`. Raise UsageError with the line number."""
    at = ("file_mounts", wanted)

    def fail(what: str, *place: str | int) -> UsageError:
        return UsageError(f"{path}: line {document.line(*place)}: {what}")

    if not wanted or wanted in ("/", "~", "~/", ".", "./") or ".." in Path(wanted).parts:
        raise fail(f"file_mounts: {wanted!r} cannot be the path of a mount", *at)
    storage = Storage(source=one, mode="COPY") if isinstance(one, str) else one
    mode = storage.mode.upper()
    if mode not in MODES:
        raise fail(f"mode is {storage.mode!r}; {near(mode, MODES)}", *at, "mode")
    if storage.store is not None and storage.store.lower() not in STORES:
        raise fail(f"store is {storage.store!r}; {near(storage.store.lower(), STORES)}", *at, "store")
    if isinstance(storage.source, list):
        sources = tuple(str(_path(path, each)) for each in storage.source)
        if absent := next((each for each in sources if not Path(each).exists()), ""):
            raise fail(f"{wanted}: {absent} does not exist", *at, "source")
        return Mount(
            path=wanted, source="", mode=mode, name=storage.name or "", sources=sources, line=document.line(*at)
        )
    if storage.source is None and not storage.name:
        empty = "name is empty: write the name of your bucket" if "name" in _said(document, at) else "it has neither"
        raise fail(f"{wanted}: {empty}{'' if 'name' in _said(document, at) else ' name nor source'}", *at, "name")
    source = storage.source or ""
    if storage.source is not None and not source.strip():
        raise fail(f"{wanted}: source is empty: write the file or folder to mount", *at)
    if source and "://" not in source and not file_variables.NAMED.search(source):
        local = _path(path, source)
        if local.exists() and not (local.is_dir() or local.is_file()):  # Opening a named pipe would block.
            raise fail(f"{wanted}: {source} is neither a file nor a folder", *at)
        try:
            list(local.iterdir()) if local.is_dir() else local.open("rb").close()
        except OSError as error:
            raise fail(f"{wanted}: {source} cannot be read: {error.strerror}", *at) from None
        source = str(local)
    return Mount(
        path=wanted,
        source=source,
        mode=mode,
        name=storage.name or "",
        store=(storage.store or "").lower(),
        line=document.line(*at),
    )


def _said(document: YamlDocument, place: strict_yaml.Place) -> Mapping[str, Any]:
    said = document.value
    for key in place:
        said = said[key]
    return said if isinstance(said, dict) else {}


def _path(file: Path, text: str) -> Path:
    """Return an absolute local path. Relative paths start at the working directory of the command, as in SkyPilot."""
    return Path(text).expanduser().absolute()


def folder(where: str, path: Path) -> Path:
    """Return the resolved folder. Raise UsageError, prefixed with `where`, if the folder is missing or a file."""
    found = path.expanduser().absolute()
    if not found.exists():
        raise UsageError(f"{where}: the folder {path} does not exist")
    if not found.is_dir():
        raise UsageError(f"{where}: {path} is a file; expected a folder")
    return found.resolve()


def _name(where: str, text: str | None) -> str:
    """Return a valid job name, "" for None. The rules are SkyPilot's; raise UsageError for a violation."""
    if text is None:
        return ""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text) or len(text) > MOST_NAME:
        raise UsageError(
            f"{where}: {text!r} is not a valid name: letters and digits, with . _ - between them, at most {MOST_NAME}; "
            f"write {re.sub('[^A-Za-z0-9]+', '-', text).strip('-')[:MOST_NAME].strip('-') or 'job'}"
        )
    return text


def near(word: str, known: Collection[str]) -> str:
    """Return a suggestion for a misspelled word: the closest known word, or the list of known words."""
    found = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {found[0]}?" if found else f"known: {', '.join(known)}"
