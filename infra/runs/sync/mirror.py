"""The local mirror of a run, so that it outlives its pod: logs as they grow, last reports, artifacts.

In: a journal row and the transport to its pod. Out: files under `<homes>/<run>/`, artifacts in the local store. All of
it may be repeated: what is here already is not fetched again.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from infra.agent.job import Job, PodFolder, write_durably
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.pod_reports import SAID_BYTES, parse
from infra.runs.pods import folder_of
from infra.transport import large_files
from infra.transport.meter import Meter
from infra.transport.protocol import READ_BYTES, Transport
from store.artifacts.artifacts import Store
from store.local_files import write_whole
from store.manifest import MISSING, Manifest, StoreError, kept_name, places
from store.run_sync.restore import EARLIER
from store.run_sync.run_folder import ENDING, LOG, RunFolder

LIST_S = 30.0
SLOWEST_BYTES_PER_S = 100_000
PATIENCE_S = 120.0  # while a large file is moved and the connection is gone
INCOMING = "incoming"
OVERLAP_BYTES = 256  # at the end of a copy of a log, by which it is known to be of the same log
# Size of a log, size of what an earlier pod has written of it, name. Times are those of this pod's bytes only.
LIST_LOGS = (
    'cd -- "$1" 2>/dev/null || exit 0; for log in *.log *.times; do [ -f "$log" ] || continue; '
    'before="$2/${log%.*}.log"; if [ ! -f "$before" ]; then echo $(wc -c < "$log") 0 "$log"; '
    'elif [ "$log" = "${log%.times}" ]; then echo $(wc -c < "$log") $(wc -c < "$before") "$log"; fi; done; exit 0'
)


def bring_logs(op: Op, transport: Transport, folder: Path) -> list[Path]:
    """Append to the copies in `folder` what the pod's logs have grown by; the logs that there are, by name."""
    pod = folder_of(op)
    before = pod.root / EARLIER
    done = transport.run(["sh", "-c", LIST_LOGS, "sh", str(pod.logs), str(before)], timeout_s=LIST_S)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: listing its logs: {done.stderr.strip() or f'exit code {done.exited}'}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for line in done.stdout.splitlines():
        size, size_before, name = line.split(maxsplit=2)
        path = folder / PurePosixPath(name).name
        parts = [(str(before / path.name), int(size_before)), (str(pod.logs / path.name), int(size))]
        if not _append(transport, parts, path):
            path.unlink()
            _append(transport, parts, path)
        paths.append(path)
    return sorted(paths)


def _append(transport: Transport, parts: Sequence[tuple[str, int]], path: Path) -> bool:
    """Append to a copy what it lacks of these parts; return False if it is a copy of something else."""
    size, here = sum(size for _, size in parts), path.stat().st_size if path.exists() else 0
    if here and here >= size:
        return here == size
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        file.seek(max(0, here - OVERLAP_BYTES))
        known = file.read(here - file.tell())
        pieces, head = _pieces(transport, parts, here - len(known)), b""
        while len(head) < len(known):
            head += next(pieces)
        if not head.startswith(known):
            return False
        file.seek(here)  # by offset, so that two processes with the same bytes write them once
        file.write(head[len(known) :])
        file.writelines(pieces)
    return True


def _pieces(transport: Transport, parts: Sequence[tuple[str, int]], begin: int) -> Iterator[bytes]:
    """Yield the bytes of these parts together, from there on."""
    for source, size in parts:
        while begin < size:
            piece = transport.read(source, begin)[: size - begin]
            if not piece:
                raise SlipwayError(f"{source} has shrunk while it was read")
            yield piece
            begin += len(piece)
        begin -= size


def bring_logs_from_store(op: Op, folder: Path) -> list[Path]:
    """Copy to `folder` the logs that the pod's courier has brought to the store and that are longer than those here.

    For a pod that does not answer any more. Raises StoreError when the store cannot be read.
    """
    paths = []
    try:
        there = RunFolder(op.store or "", op.run)
        for name, size in sorted(there.names().items()):
            path = folder / PurePosixPath(name).name
            if LOG.fullmatch(name) and (not path.exists() or path.stat().st_size < size):
                write_whole(path, there.pieces(name))
                paths.append(path)
    except StoreError:
        raise
    except Exception as error:  # whatever a store's client raises
        raise StoreError(f"the logs of {op.run} in {op.store}: {type(error).__name__}: {error}") from error
    return paths


def last_words(op: Op, folder: Path) -> dict[str, Any]:
    """Return the verdict of a pod that is gone: from the mirror, else as its courier left it in the store.

    What the store has is kept in the mirror. {} when neither has one: the pod was taken away from its work. Raises
    StoreError when the store cannot be read.
    """
    verdict = words_at_home(op, folder).get("verdict", {})
    if verdict.get("token") == op.token:
        return dict(verdict)
    try:
        verdict = parse(RunFolder(op.store or "", op.run).read(ENDING), f"how {op.run} ended, in {op.store},")
    except FileNotFoundError:
        return {}
    except SlipwayError as error:
        raise StoreError(str(error)) from None
    except StoreError:
        raise
    except Exception as error:  # whatever a store's client raises
        raise StoreError(f"how {op.run} ended, in {op.store}: {type(error).__name__}: {error}") from error
    if verdict.get("token") != op.token:
        return {}
    write_durably(folder / "verdict.json", json.dumps(verdict))
    return dict(verdict)


def words_there(op: Op, transport: Transport) -> dict[str, Any]:
    """Return the reports of this very pod, by kind: progress, verdict, guard."""
    pod, said = folder_of(op), {}
    for kind, path in {"progress": pod.progress, "verdict": pod.verdict, "guard": pod.state / "guard.json"}.items():
        with contextlib.suppress(FileNotFoundError):
            found = parse(transport.get(path, SAID_BYTES), f"the {kind} of {op.run}")
            if found.get("token") == op.token:
                said[kind] = found
    return said


def bring_words(op: Op, transport: Transport, folder: Path) -> None:
    """Keep what the pod says of itself."""
    for kind, found in words_there(op, transport).items():
        write_durably(folder / f"{kind}.json", json.dumps(found))


def words_at_home(op: Op, folder: Path) -> dict[str, Any]:
    """Return the reports that `bring_words` kept, by kind."""
    said = {}
    for kind in ("progress", "verdict", "guard"):
        with contextlib.suppress(FileNotFoundError):
            said[kind] = parse((folder / f"{kind}.json").read_bytes(), f"the {kind} of {op.run} at home")
    return said


def send_artifacts(job: Job, pod: PodFolder, pod_store: str, transport: Transport, home: Store) -> list[str]:
    """Copy to the pod's store what the job reads, and what it has made elsewhere; the names of what was sent."""
    makings = [step.config["making"] for step in job.steps if "making" in step.config]
    is_old = not any("code" in making for making in makings)
    made = {making["name"]: making["fingerprint"] for making in makings}
    wanted = {one["name"]: one["fingerprint"] for making in makings for one in making["inputs"].values()}
    wanted = {**wanted, **made}
    sent = []
    for name, fingerprint in sorted(wanted.items()):
        is_here = name not in made or is_home(home, name, fingerprint)
        if is_here and _manifest_there(pod, pod_store, name, fingerprint, transport) is None:
            folder, manifest = home.path(name, fingerprint), home.manifest_of(name, fingerprint)
            if is_old:  # older code knows names only
                manifest = replace(manifest, name=name, flat=name == "identity_conversations")
            place = places(manifest.name)[manifest.flat]
            root = pod.code / pod_store
            transport.run(["rm", "-f", "--", str(root / place)], timeout_s=LIST_S)  # whole only when it is back
            for entry in manifest.files:
                put(transport, folder / entry.path, str(root / manifest.place(entry.path)))
            transport.put(manifest.to_json().encode(), root / place)
            sent.append(name)
    return sent


def bring_artifacts(
    op: Op, pod_store: str, transport: Transport, home: Store, folder: Path, meter: Meter | None = None
) -> list[str]:
    """Publish at home what the job of this row has made on its pod; the names of what was brought.

    `folder`: of the run at home; what is cut off stays in `incoming` there, and is gone on with.

    Raises StoreError when what arrived is not what the pod's manifest says.
    """
    pod, brought, meter = folder_of(op), [], meter or Meter()
    for step in op.read_job().steps:
        making = step.config.get("making", {})
        name, fingerprint = making.get("name", ""), making.get("fingerprint", "")
        if name and is_home(home, name, fingerprint):
            if home.check(name).problem == MISSING:  # a kill came between keeping it and naming it
                home.point(name, fingerprint)
            continue
        if not name:
            continue
        manifest = _manifest_there(pod, pod_store, name, fingerprint, transport)
        if manifest is None:
            continue
        with _draft(folder / INCOMING, fingerprint) as draft:
            keep_only(draft, {entry.path for entry in manifest.files})
            for entry in manifest.files:
                source = str(pod.code / pod_store / manifest.place(entry.path))
                if fetch(transport, source, draft / entry.path, entry.size, meter) != entry.sha256:
                    raise StoreError(
                        f"{name} from {op.run}: {entry.path} arrived damaged; run again: inv pull {op.run}"
                    )
            home.publish(draft, name, fingerprint, manifest.about, flat=name == "identity_conversations")
        brought.append(name)
    return brought


def is_home(home: Store, name: str, fingerprint: str) -> bool:
    """Return whether the local store holds that very artifact, whole."""
    return not home.find(name, fingerprint).problem


def _manifest_there(pod: PodFolder, store: str, name: str, fingerprint: str, transport: Transport) -> Manifest | None:
    """Return the manifest on the pod; None when there is none of that fingerprint that can be used.

    Then the artifact is made, or sent, again.
    """
    for place in (*places(kept_name(name, fingerprint)), *places(name)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found = Manifest.from_json(transport.get(pod.code / store / place))
            if found.fingerprint == fingerprint:
                return found
    return None


def fetch(transport: Transport, source: str, path: Path, size: int, meter: Meter) -> str:
    """Copy the first `size` bytes of a file of the pod, however long it is there; the sha256 of what arrived.

    Of a large file, what is in `path` already is not fetched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    if large_files.applies(transport, size):
        large_files.fetch(transport, source, path, size, meter)
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
        return digest.hexdigest()
    with path.open("wb") as file:
        while file.tell() < size and (piece := transport.read(source, file.tell())[: size - file.tell()]):
            file.write(piece)
            digest.update(piece)
            meter.count(len(piece))
    return digest.hexdigest()


def put(transport: Transport, path: Path, place: str) -> None:
    """Copy a file to the pod, in pieces; of a large one, what is there already is not sent."""
    size = path.stat().st_size
    if large_files.applies(transport, size):
        meter = Meter()
        large_files.persist(lambda: large_files.put(transport, path, place, size, meter), meter, PATIENCE_S, _log)
        return

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                yield piece

    script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
    timeout_s = LIST_S + size / SLOWEST_BYTES_PER_S
    done = transport.run(["sh", "-c", script, "sh", place], stdin=pieces(), timeout_s=timeout_s)
    if done.exited != 0:
        raise SlipwayError(f"sending {place}: {done.stderr.strip() or f'exit code {done.exited}'}")


def keep_only(draft: Path, paths: Collection[str]) -> None:
    """Remove what an earlier attempt has left in a draft and what does not belong to it now."""
    for path in draft.rglob("*"):
        if path.is_file() and str(path.relative_to(draft)) not in paths:
            path.unlink()


def _log(words: str) -> None:
    logging.getLogger(__name__).warning("%s", words)


@contextlib.contextmanager
def _draft(folder: Path, key: str) -> Iterator[Path]:
    """Yield a folder for what is being fetched, with what an earlier attempt has left; it goes when all has come.

    Another process may be fetching the same: then it is a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=folder) as own:
                yield Path(own)
            return
        draft = folder / key
        draft.mkdir(exist_ok=True)
        yield draft
        shutil.rmtree(draft, ignore_errors=True)  # the store may have taken it
