"""Local mirror of a run's logs, verdict and artifacts, so that the output outlives the pod.

The functions read from a pod (journal row and transport) and write below `pod/` in the run's home and into the local
store. All functions are idempotent: existing data is not fetched again.
"""

import contextlib
import fcntl
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent.job import Job, PodFolder, earlier_part
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.observation import folder_of
from infra.runs.pod_reports import parse
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files, log_mask, reports
from infra.runs.sync.fetched_files import LIST_S, MOST_FILES, FetchRoom, check_fits, listed
from infra.transport import large_files
from infra.transport.protocol import LOGS, READ_BYTES, Meter, Transport
from store.artifacts.artifacts import Store
from store.manifest import MISSING, Manifest, StoreError, kept_name, places
from store.masking import Mask
from store.run_sync.restore import EARLIER
from store.run_sync.run_folder import ENDING, RunFolder
from store.untrusted_input import LOG, NamedSizes

SLOWEST_BYTES_PER_S = 100_000
PATIENCE_S = 120.0  # Timeout for a lost connection during the transfer of a large file.
OVERLAP_BYTES = 256  # Trailing bytes that identify a copied log.
NO_MASK = Mask(())


def bring_logs(op: Op, transport: Transport, home: RunHome) -> list[Path]:
    """Append the new bytes of the pod's logs to the local copies; return the paths of the copies, by name."""
    listing, room = listed(op, transport, LOGS), FetchRoom.for_home(home)
    mask = log_mask.mask_for(op, transport)
    paths, cuts = list[Path](), fetched_files.cuts_of(listing)
    for name in sorted(path for path in listing.sizes if LOG.fullmatch(path)):
        parts = _parts_of(name, folder_of(op).root, listing)
        if not parts:
            continue
        with contextlib.suppress(FileNotFoundError):  # The log was removed after the listing.
            there = sum(size for _, size in parts)
            size = room.reserve(fetched_files.held_bytes(home.pod.root / name), there)
            _copy_log(LogSource(transport, parts, mask if name.endswith(".log") else NO_MASK), home, name, size)
            paths.append(home.pod.root / name)
            cuts += [fetched_files.describe_cut(name, size, there)] if size < there else []
    fetched_files.note_cuts(home, "logs", cuts)
    return paths


def _parts_of(name: str, root: Path, listing: NamedSizes) -> list[tuple[str, int]]:
    """Return paths and sizes of a log's parts on the pod: the part of earlier pods, and the part of this pod.

    A `.times` file indexes only bytes of this pod, so return [] for a `.times` file after an earlier part.
    """
    earlier = f"{EARLIER}/{Path(name).stem}.log"
    before = listing.sizes.get(earlier)
    if before is None:
        return [(str(root / name), listing.sizes[name])]
    if name.endswith(".times"):
        return []
    return [(str(root / earlier), before), (str(root / name), listing.sizes[name])]


@dataclass(frozen=True)
class LogSource:
    """A log on a pod, in parts: the part of earlier pods, and the part of this pod."""

    transport: Transport
    parts: Sequence[tuple[str, int]]
    mask: Mask

    def read_masked(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the masked bytes from offset `begin` to `end`, without a tail that may begin a secret."""
        lead = min(begin, self.mask.longest)
        return self.mask.mask_part(_pieces(self.transport, self.parts, begin - lead, end), lead)


def _copy_log(source: LogSource, home: RunHome, name: str, size: int) -> None:
    if not _append(source, home, name, size):
        fetched_files.place(home.pod.root, name).unlink()
        _append(source, home, name, size)


def _append(source: LogSource, home: RunHome, name: str, size: int) -> bool:
    """Append the missing bytes of the first `size` bytes to a copy; return False if the copy is of a different log."""
    here = fetched_files.held_bytes(home.pod.root / name)
    if here and here >= size:
        return here == size
    with fetched_files.opened(home.pod.root, name) as file:
        file.seek(max(0, here - OVERLAP_BYTES))
        known = file.read(here - file.tell())
        pieces, head = source.read_masked(here - len(known), size), b""
        while len(head) < len(known) and (piece := next(pieces, None)) is not None:
            head += piece
        if not head.startswith(known):
            return False
        file.seek(here)  # Write by offset, so that two processes with the same bytes write the bytes once.
        file.write(head[len(known) :])
        file.writelines(pieces)
    return True


def _pieces(transport: Transport, parts: Sequence[tuple[str, int]], begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of the concatenated parts, from offset `begin` to `end`."""
    for source, listed_size in parts:
        size = min(listed_size, end)
        while begin < size:
            piece = transport.read(source, begin)[: size - begin]
            if not piece:
                raise SlipwayError(f"{source} has shrunk during the download")
            yield piece
            begin += len(piece)
        begin, end = begin - size, end - size


def bring_logs_from_store(op: Op, home: RunHome) -> list[Path]:
    """Copy logs uploaded by the pod's uploader from the store, if longer than the local copy; return the paths.

    Used for a silent pod. Raises StoreError if the store cannot be read.
    """
    paths, cuts, room = list[Path](), list[str](), FetchRoom.for_home(home)
    try:
        # The uploader has masked the logs, too.
        there, mask = RunFolder(op.store or "", op.run), log_mask.mask_here(op)
        files = sorted(there.file_sizes().items())[:MOST_FILES]
        rotated = {log for log in (name for name, _ in files) if _is_rotated(log, dict(files), home)}
        for name, size in files:
            here = 0 if name in rotated else fetched_files.held_bytes(home.pod.root / name)
            if LOG.fullmatch(name) and here < (most := room.reserve(here, size)):
                paths.append(fetched_files.replace(home.pod.root, name, _first(mask(there.read_chunks(name)), most)))
                cuts += [fetched_files.describe_cut(name, most, size)] if most < size else []
    except StoreError:
        raise
    except Exception as error:  # A store client may raise any exception.
        raise StoreError(f"the logs of {op.run} in {op.store}: {type(error).__name__}: {error}") from error
    fetched_files.note_cuts(home, "logs of the store", cuts)
    return paths


def _is_rotated(log: str, there: Mapping[str, int], home: RunHome) -> bool:
    """Return True if the pod has rotated a log since the last local copy."""
    part = earlier_part(Path(log)).as_posix()
    return there.get(part, 0) > fetched_files.held_bytes(home.pod.root / part)


def _first(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield at most `most` bytes."""
    for piece in pieces:
        yield piece[:most]
        most -= len(piece)
        if most <= 0:
            return


def final_verdict(op: Op, home: RunHome) -> dict[str, Any]:
    """Return the verdict of a gone pod, from the mirror or else from the uploader's upload in the store.

    A verdict from the store is saved in the mirror. Return {} without a verdict: the pod was taken away during its
    work. Raises StoreError if the store cannot be read.
    """
    verdict = reports.read_local(op, home).get("verdict", {})
    if verdict.get("token") == op.token:
        return dict(verdict)
    try:
        verdict = parse(RunFolder(op.store or "", op.run).read(ENDING), f"the verdict of {op.run} in {op.store}")
    except FileNotFoundError:
        return {}
    except SlipwayError as error:
        raise StoreError(str(error)) from None
    except StoreError:
        raise
    except Exception as error:  # A store client may raise any exception.
        raise StoreError(f"the verdict of {op.run} in {op.store}: {type(error).__name__}: {error}") from error
    if verdict.get("token") != op.token:
        return {}
    reports.save(home, "verdict", verdict)
    return dict(verdict)


def send_artifacts(job: Job, pod: PodFolder, pod_store: str, transport: Transport, home: Store) -> list[str]:
    """Copy a job's input artifacts, and outputs already made elsewhere, to the pod's store; return the names sent."""
    makings = [step.config["making"] for step in job.steps if "making" in step.config]
    made = {making["name"]: making["fingerprint"] for making in makings}
    wanted = {one["name"]: one["fingerprint"] for making in makings for one in making["inputs"].values()}
    wanted = {**wanted, **made}
    sent = []
    for name, fingerprint in sorted(wanted.items()):
        is_here = name not in made or is_in_local_store(home, name, fingerprint)
        if is_here and _manifest_there(pod, pod_store, name, fingerprint, transport) is None:
            folder, manifest = home.path(name, fingerprint), home.manifest_of(name, fingerprint)
            place = places(manifest.name)[manifest.flat]
            root = pod.code / pod_store
            transport.run(["rm", "-f", "--", str(root / place)], timeout_s=LIST_S)  # Incomplete without manifest.
            for entry in manifest.files:
                put(transport, folder / entry.path, str(root / manifest.place(entry.path)))
            transport.put(manifest.to_json().encode(), root / place)
            sent.append(name)
    return sent


def bring_artifacts(
    op: Op, pod_store: str, transport: Transport, store: Store, home: RunHome, meter: Meter | None = None
) -> list[str]:
    """Publish the artifacts made on the row's pod in the local store; return the names fetched.

    A partial download stays in the run's home and is continued later. Raises StoreError if a file differs from the
    pod's manifest, and SlipwayError without enough disk space.
    """
    pod, brought, meter = folder_of(op), [], meter or Meter()
    for step in op.read_job().steps:
        making = step.config.get("making", {})
        name, fingerprint = making.get("name", ""), making.get("fingerprint", "")
        if name and is_in_local_store(store, name, fingerprint):
            if store.check(name).problem == MISSING:  # A kill came between publishing and naming the artifact.
                store.point_name(name, fingerprint)
            continue
        if not name:
            continue
        manifest = _manifest_there(pod, pod_store, name, fingerprint, transport)
        if manifest is None:
            continue
        check_fits(name, sum(entry.size for entry in manifest.files), home.folder)
        with _draft(home, fingerprint) as draft:
            keep_only(draft, {entry.path for entry in manifest.files})
            for entry in manifest.files:
                source = str(pod.code / pod_store / manifest.place(entry.path))
                if fetch(transport, source, fetched_files.place(draft, entry.path), entry.size, meter) != entry.sha256:
                    raise StoreError(
                        f"{name} from {op.run}: {entry.path} was damaged in transfer; run again: inv pull {op.run}"
                    )
            store.publish(draft, name, fingerprint, manifest.about, flat=name == "identity_conversations")
        brought.append(name)
    return brought


def is_in_local_store(home: Store, name: str, fingerprint: str) -> bool:
    """Return True if the local store holds the complete artifact with this fingerprint."""
    return not home.find(name, fingerprint).problem


def _manifest_there(pod: PodFolder, store: str, name: str, fingerprint: str, transport: Transport) -> Manifest | None:
    """Return the manifest on the pod, or None without a usable manifest of this fingerprint.

    After None, the artifact is made or sent again.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = Manifest.from_json(transport.get(pod.code / store / places(kept_name(name, fingerprint))[0]))
        return found if found.fingerprint == fingerprint else None
    return None


def fetch(transport: Transport, source: str, path: Path, size: int, meter: Meter) -> str:
    """Copy the first `size` bytes of a pod's file to `path`; return the SHA-256 of the received bytes.

    For a large file, continue from the bytes already in `path`.
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
    """Copy a local file to the pod in pieces; continue a partial transfer of a large file. Raises SlipwayError."""
    size = path.stat().st_size
    if large_files.applies(transport, size):
        meter = Meter()
        large_files.retry_while_progressing(
            lambda: large_files.put(transport, path, place, size, meter), meter, PATIENCE_S, _log
        )
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
    """Delete the files of an earlier attempt that no longer belong to a draft."""
    for path in draft.rglob("*"):
        if path.is_file() and str(path.relative_to(draft)) not in paths:
            path.unlink()


def _log(words: str) -> None:
    logging.getLogger(__name__).warning("%s", words)


@contextlib.contextmanager
def _draft(home: RunHome, key: str) -> Iterator[Path]:
    """Yield a draft folder with the files of an earlier attempt; delete the folder after a complete fetch.

    If a different process is fetching the same artifact, yield a new temporary folder.
    """
    path = fetched_files.place(home.pod.root, f"{home.incoming.name}/{key}.lock")
    folder = path.parent
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=folder) as own:
                yield Path(own)
            return
        draft = fetched_files.place(home.pod.root, f"{home.incoming.name}/{key}")
        draft.mkdir(exist_ok=True)
        yield draft
        shutil.rmtree(draft, ignore_errors=True)  # The store may have moved the folder.
