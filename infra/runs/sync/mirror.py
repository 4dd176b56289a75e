"""The local mirror of a run, so that it outlives its pod: logs as they grow, its verdict, artifacts.

In: a journal row and the transport to its pod. Out: files under `pod/` in the run's home, artifacts in the local store.
All of it may be repeated: what is here already is not fetched again.
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
from infra.runs.pod_reports import parse
from infra.runs.run_home import RunHome
from infra.runs.sight import folder_of
from infra.runs.sync import fetched, log_mask, reports
from infra.runs.sync.fetched import MOST_FILES, FetchRoom
from infra.runs.sync.listing import LIST_S, listed
from infra.runs.sync.room import refuse_large
from infra.transport import large_files
from infra.transport.meter import Meter
from infra.transport.protocol import LOGS, READ_BYTES, Transport
from store.artifacts.artifacts import Store
from store.manifest import MISSING, Manifest, StoreError, kept_name, places
from store.masking import Mask
from store.run_sync.restore import EARLIER
from store.run_sync.run_folder import ENDING, RunFolder
from store.untrusted_names import LOG, NamedSizes

SLOWEST_BYTES_PER_S = 100_000
PATIENCE_S = 120.0  # while a large file is moved and the connection is gone
OVERLAP_BYTES = 256  # at the end of a copy of a log, by which it is known to be of the same log
NO_MASK = Mask(())


def bring_logs(op: Op, transport: Transport, home: RunHome) -> list[Path]:
    """Append to the copies at home what the pod's logs have grown by; the logs that there are, by name."""
    listing, room = listed(op, transport, LOGS), FetchRoom.of(home)
    mask = log_mask.mask_for(op, transport)
    paths, cuts = list[Path](), fetched.cuts_of(listing)
    for name in sorted(path for path in listing.sizes if LOG.fullmatch(path)):
        parts = _parts_of(name, folder_of(op).root, listing)
        if not parts:
            continue
        with contextlib.suppress(FileNotFoundError):  # it was removed since it was listed
            there = sum(size for _, size in parts)
            size = room.share(fetched.held_bytes(home.pod.root / name), there)
            _copy_log(LogSource(transport, parts, mask if name.endswith(".log") else NO_MASK), home, name, size)
            paths.append(home.pod.root / name)
            cuts += [fetched.cut(name, size, there)] if size < there else []
    fetched.note_cuts(home, "logs", cuts)
    return paths


def _parts_of(name: str, root: Path, listing: NamedSizes) -> list[tuple[str, int]]:
    """Return where the parts of a log are on the pod, with their sizes: that of earlier pods, and that of this one.

    Times are those of this pod's bytes only: with an earlier part before them they are of no use.
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
    """A log on a pod, in parts: that of earlier pods, and that of this one."""

    transport: Transport
    parts: Sequence[tuple[str, int]]
    mask: Mask

    def masked(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from one offset to another, masked, up to where a secret may begin that goes on later."""
        lead = min(begin, self.mask.longest)
        return self.mask.part(_pieces(self.transport, self.parts, begin - lead, end), lead)


def _copy_log(source: LogSource, home: RunHome, name: str, size: int) -> None:
    if not _append(source, home, name, size):
        fetched.place(home.pod.root, name).unlink()
        _append(source, home, name, size)


def _append(source: LogSource, home: RunHome, name: str, size: int) -> bool:
    """Append to a copy what it lacks of the first `size` bytes; return False if it is a copy of something else."""
    here = fetched.held_bytes(home.pod.root / name)
    if here and here >= size:
        return here == size
    with fetched.opened(home.pod.root, name) as file:
        file.seek(max(0, here - OVERLAP_BYTES))
        known = file.read(here - file.tell())
        pieces, head = source.masked(here - len(known), size), b""
        while len(head) < len(known) and (piece := next(pieces, None)) is not None:
            head += piece
        if not head.startswith(known):
            return False
        file.seek(here)  # by offset, so that two processes with the same bytes write them once
        file.write(head[len(known) :])
        file.writelines(pieces)
    return True


def _pieces(transport: Transport, parts: Sequence[tuple[str, int]], begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of these parts together, from one offset to another."""
    for source, listed_size in parts:
        size = min(listed_size, end)
        while begin < size:
            piece = transport.read(source, begin)[: size - begin]
            if not piece:
                raise SlipwayError(f"{source} has shrunk while it was read")
            yield piece
            begin += len(piece)
        begin, end = begin - size, end - size


def bring_logs_from_store(op: Op, home: RunHome) -> list[Path]:
    """Copy home the logs that the pod's courier has brought to the store and that are longer than those here.

    For a pod that does not answer any more. Raises StoreError when the store cannot be read.
    """
    paths, cuts, room = list[Path](), list[str](), FetchRoom.of(home)
    try:
        there, mask = RunFolder(op.store or "", op.run), log_mask.mask_here(op)  # its courier has masked them, too
        files = sorted(there.names().items())[:MOST_FILES]
        rotated = {log for log in (name for name, _ in files) if _is_rotated(log, dict(files), home)}
        for name, size in files:
            here = 0 if name in rotated else fetched.held_bytes(home.pod.root / name)
            if LOG.fullmatch(name) and here < (most := room.share(here, size)):
                paths.append(fetched.replace(home.pod.root, name, _first(mask(there.pieces(name)), most)))
                cuts += [fetched.cut(name, most, size)] if most < size else []
    except StoreError:
        raise
    except Exception as error:  # whatever a store's client raises
        raise StoreError(f"the logs of {op.run} in {op.store}: {type(error).__name__}: {error}") from error
    fetched.note_cuts(home, "logs of the store", cuts)
    return paths


def _is_rotated(log: str, there: Mapping[str, int], home: RunHome) -> bool:
    """Return whether the pod has rotated a log since it was copied home."""
    part = earlier_part(Path(log)).as_posix()
    return there.get(part, 0) > fetched.held_bytes(home.pod.root / part)


def _first(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield so many bytes at most."""
    for piece in pieces:
        yield piece[:most]
        most -= len(piece)
        if most <= 0:
            return


def last_words(op: Op, home: RunHome) -> dict[str, Any]:
    """Return the verdict of a pod that is gone: from the mirror, else as its courier left it in the store.

    What the store has is kept in the mirror. {} when neither has one: the pod was taken away from its work. Raises
    StoreError when the store cannot be read.
    """
    verdict = reports.at_home(op, home).get("verdict", {})
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
    reports.keep(home, "verdict", verdict)
    return dict(verdict)


def send_artifacts(job: Job, pod: PodFolder, pod_store: str, transport: Transport, home: Store) -> list[str]:
    """Copy to the pod's store what the job reads, and what it has made elsewhere; the names of what was sent."""
    makings = [step.config["making"] for step in job.steps if "making" in step.config]
    made = {making["name"]: making["fingerprint"] for making in makings}
    wanted = {one["name"]: one["fingerprint"] for making in makings for one in making["inputs"].values()}
    wanted = {**wanted, **made}
    sent = []
    for name, fingerprint in sorted(wanted.items()):
        is_here = name not in made or is_home(home, name, fingerprint)
        if is_here and _manifest_there(pod, pod_store, name, fingerprint, transport) is None:
            folder, manifest = home.path(name, fingerprint), home.manifest_of(name, fingerprint)
            place = places(manifest.name)[manifest.flat]
            root = pod.code / pod_store
            transport.run(["rm", "-f", "--", str(root / place)], timeout_s=LIST_S)  # whole only when it is back
            for entry in manifest.files:
                put(transport, folder / entry.path, str(root / manifest.place(entry.path)))
            transport.put(manifest.to_json().encode(), root / place)
            sent.append(name)
    return sent


def bring_artifacts(
    op: Op, pod_store: str, transport: Transport, store: Store, home: RunHome, meter: Meter | None = None
) -> list[str]:
    """Publish in the store here what the job of this row has made on its pod; the names of what was brought.

    What is cut off stays in the run's home, and is gone on with. Raises StoreError when what arrived is not what the
    pod's manifest says, SlipwayError when there is no room for it.
    """
    pod, brought, meter = folder_of(op), [], meter or Meter()
    for step in op.read_job().steps:
        making = step.config.get("making", {})
        name, fingerprint = making.get("name", ""), making.get("fingerprint", "")
        if name and is_home(store, name, fingerprint):
            if store.check(name).problem == MISSING:  # a kill came between keeping it and naming it
                store.point(name, fingerprint)
            continue
        if not name:
            continue
        manifest = _manifest_there(pod, pod_store, name, fingerprint, transport)
        if manifest is None:
            continue
        refuse_large(name, sum(entry.size for entry in manifest.files), home.folder)
        with _draft(home, fingerprint) as draft:
            keep_only(draft, {entry.path for entry in manifest.files})
            for entry in manifest.files:
                source = str(pod.code / pod_store / manifest.place(entry.path))
                if fetch(transport, source, fetched.place(draft, entry.path), entry.size, meter) != entry.sha256:
                    raise StoreError(
                        f"{name} from {op.run}: {entry.path} arrived damaged; run again: inv pull {op.run}"
                    )
            store.publish(draft, name, fingerprint, manifest.about, flat=name == "identity_conversations")
        brought.append(name)
    return brought


def is_home(home: Store, name: str, fingerprint: str) -> bool:
    """Return whether the local store holds that very artifact, whole."""
    return not home.find(name, fingerprint).problem


def _manifest_there(pod: PodFolder, store: str, name: str, fingerprint: str, transport: Transport) -> Manifest | None:
    """Return the manifest on the pod; None when there is none of that fingerprint that can be used.

    Then the artifact is made, or sent, again.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = Manifest.from_json(transport.get(pod.code / store / places(kept_name(name, fingerprint))[0]))
        return found if found.fingerprint == fingerprint else None
    return None


def fetch(transport: Transport, source: str, path: Path, size: int, meter: Meter) -> str:
    """Copy the first `size` bytes of a file of the pod; return the sha256 of what arrived.

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
def _draft(home: RunHome, key: str) -> Iterator[Path]:
    """Yield a folder for what is being fetched, with what an earlier attempt has left; it goes when all has come.

    Another process may be fetching the same: then it is a new one.
    """
    path = fetched.place(home.pod.root, f"{home.incoming.name}/{key}.lock")
    folder = path.parent
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=folder) as own:
                yield Path(own)
            return
        draft = fetched.place(home.pod.root, f"{home.incoming.name}/{key}")
        draft.mkdir(exist_ok=True)
        yield draft
        shutil.rmtree(draft, ignore_errors=True)  # the store may have taken it
