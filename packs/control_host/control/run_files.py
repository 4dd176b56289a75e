"""Copying the stored files of runs between a laptop and a control host.

A live run needs the launched code, to continue on the other machine, and the logs; a finished run needs only the logs
and reports. Functions take the local and remote folders with run files, and names of runs.
"""

import contextlib
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror, reports
from infra.transport import large_files
from infra.transport.protocol import Meter, ThisMachine, Transport
from packs.control_host.control import bounded_tar
from store import untrusted_input
from store.untrusted_input import UnusableDocument

BASE_S = 60.0
SLOWEST_BYTES_PER_S = 100_000
MOST_NAMED = 20  # maximum number of reported links
TAKE = 'mkdir -p -- "$1" && tar -xzf - -C "$1"'
# Pack whole folders, named as arguments; for names on stdin pack only receipts, logs and reports.
GIVE = """
cd -- "$1" 2>/dev/null || exit 0; draft=$2; shift 2
{ for one in "$@"; do [ ! -d "$one" ] || printf '%s\\n' "$one"; done
  while read -r one; do for folder in "$one" "$one/pod/logs" "$one/pod/state"; do
      [ ! -d "$folder" ] || find "$folder" -maxdepth 1 -type f
  done; done; } > "$draft.list"
[ ! -s "$draft.list" ] || tar -czf "$draft" -T "$draft.list"
code=$?; rm -f "$draft.list"; [ ! -f "$draft" ] || wc -c < "$draft"; exit $code
"""
# Pack a file or a folder except large files, which are listed with their sizes.
PACK = """
import json, os, sys, tarfile
top, draft, least, large = sys.argv[1], sys.argv[2], int(sys.argv[3]), []
if not os.path.exists(top):
    sys.exit(3)
with tarfile.open(draft, "w:gz", compresslevel=1) as tar:
    def small(one):
        tar.inodes = {}  # a second name of a file is a file
        if not (one.isfile() or one.isdir() or one.issym()):
            return None
        if not one.isfile() or one.size <= least:
            return one
        large.append([one.name, one.size, one.mode & 0o777])
    tar.add(os.path.realpath(top), os.path.basename(top), filter=small)
print(json.dumps({"is_folder": os.path.isdir(top), "large": large, "bytes": os.path.getsize(draft)}))
"""
NOT_THERE = 3


def gather(journal: Journal, here: Path) -> None:
    """Copy logs and reports of local runs to the run homes, which are readable wherever the journal is."""
    for run in journal.runs():
        op = journal.ops(run=run)[-1]
        if op.vendor == "local" and op.address and folder_of(op).logs.is_dir():
            home = RunHome.for_run(run, here)
            mirror.bring_logs(op, ThisMachine(), home)
            reports.download(op, ThisMachine(), home)


def send(machine: Transport, there: Path, here: Path, runs: Sequence[str], over: Sequence[str]) -> None:
    """Copy the stored files of `runs` to the host, and single files of finished runs `over`. Raises SlipwayError."""
    names = [name for name in runs if (here / name).is_dir()]
    files = [one for name in over for one in _files_of(RunHome.for_run(name, here))]
    if not (names or files):
        return
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            for name in names:
                tar.add(here / name, name)
            for one in files:
                tar.add(one, one.relative_to(here))
        limit_s = BASE_S + file.tell() / SLOWEST_BYTES_PER_S
        file.seek(0)
        done = machine.run(["sh", "-c", TAKE, "sh", str(there)], stdin=_pieces(file), timeout_s=limit_s)
    if done.exited != 0:
        raise SlipwayError(f"the files of {', '.join(names) or 'earlier runs'} cannot be sent: {done.stderr.strip()}")


def _files_of(home: RunHome) -> list[Path]:
    """Return the stored files of a finished run: receipt, logs and reports."""
    folders = [one for one in (home.folder, home.pod.logs, home.pod.state) if one.is_dir()]
    return [one for folder in folders for one in sorted(folder.iterdir()) if one.is_file() and not one.is_symlink()]


def fetch(machine: Transport, there: Path, here: Path, runs: Sequence[str], over: Sequence[str]) -> None:
    """Fetch the stored files of `runs`, and single files of finished runs `over`. Raises SlipwayError."""
    draft = f"{there}/.{secrets.token_hex(4)}.tgz"
    done = machine.run(
        ["sh", "-c", GIVE, "sh", str(there), draft, *runs],
        timeout_s=BASE_S * 10,
        stdin="".join(f"{name}\n" for name in over).encode(),
    )
    if done.exited != 0:
        raise SlipwayError(
            f"the files of {', '.join(runs) or 'earlier runs'} cannot be packed on the control host: "
            f"{done.stderr.strip()}"
        )
    if not done.stdout.strip():
        return
    with _in_words(str(there)), _draft(here) as folder:
        size = _size(done.stdout)
        bounded_tar.refuse_without_room(str(there), size, folder)
        _fetch_whole(machine, draft, folder / "packed", size)
        machine.run(["rm", "-f", draft], timeout_s=BASE_S)
        kept = bounded_tar.create_folder(folder, "all")
        links = _extract(folder / "packed", kept, lambda name: _is_kept(name, runs, over), bounded_tar.ArchiveBounds())
        _tell_left_out(bounded_tar.make_links(kept, links))
        bounded_tar.put(kept, here)


def fetch_path(machine: Transport, there: Path, here: Path, drafts: Path) -> Path:
    """Fetch a file or a folder from the host and return the local path; existing files are replaced one by one.

    A file goes into `here` when `here` is a folder. Links stay links; a link out of the fetched tree is left out and
    reported. `drafts` is a folder of Slipway on the host. Raises SlipwayError.
    """
    draft = f"{drafts}/.{secrets.token_hex(4)}.tgz"
    try:
        with _in_words(str(there)):
            packed = _pack(machine, there, draft)
        target = here if packed.is_folder or not here.is_dir() else here / there.name
        if target.exists() and target.is_dir() is not packed.is_folder:
            kinds = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
            raise UsageError(f"{target} is {kinds[0]}, but {there} is {kinds[1]}; choose another place: --to PATH")
        with _in_words(str(there)), _draft(target if target.is_dir() else target.parent) as folder:
            bounded_tar.refuse_without_room(str(there), packed.num_bytes, folder)
            _fetch_whole(machine, draft, folder / "small", packed.small_bytes)
            bounded_tar.put(_unpacked(machine, folder, there, packed), target)
    finally:
        with contextlib.suppress(SlipwayError):  # a lost connection was already reported
            machine.run(["rm", "-f", draft], timeout_s=BASE_S)
    return target


@dataclass(frozen=True)
class _Large:
    """A file fetched separately; `name` is relative to the parent folder of the fetched path."""

    name: str
    size: int
    mode: int


@dataclass(frozen=True)
class _Packed:
    """The control host's description of a packed path."""

    is_folder: bool
    small_bytes: int
    large: tuple[_Large, ...]

    @property
    def num_bytes(self) -> int:
        return self.small_bytes + sum(one.size for one in self.large)


def _pack(machine: Transport, there: Path, draft: str) -> _Packed:
    words = [machine.python, "-c", PACK, str(there), draft, str(large_files.LARGE_BYTES)]
    done = machine.run(words, timeout_s=BASE_S * 10)
    if done.exited == NOT_THERE:
        raise UsageError(f"{there} does not exist on the control host")
    if done.exited != 0:
        raise SlipwayError(f"{there} cannot be copied: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    said = untrusted_input.mapping(done.stdout, half_pairs="surrogateescape")
    large = tuple(_large(one, there.name) for one in untrusted_input.typed(said, "large", list))
    return _Packed(
        untrusted_input.typed(said, "is_folder", bool), _size(untrusted_input.typed(said, "bytes", int)), large
    )


def _large(said: Any, top: str) -> _Large:
    if type(said) is not list or [type(one) for one in said] != [str, int, int]:
        raise UnusableDocument(
            f"the list of files has {untrusted_input.printable_line(said)}; expected a name, a size and a mode"
        )
    name, size, mode = said
    if not _is_under(untrusted_input.relative(name), top):
        raise UnusableDocument(f"the list of files has {untrusted_input.printable_line(name)}, which was not requested")
    return _Large(name, _size(size), mode)


def _size(said: str | int) -> int:
    text = str(said).strip()
    if not (text.isascii() and text.isdecimal() and len(text) < untrusted_input.INTEGER_DIGITS):
        raise UnusableDocument(f"{untrusted_input.printable_line(said)} is no size of a file")
    return int(text)


def _unpacked(machine: Transport, folder: Path, there: Path, packed: _Packed) -> Path:
    """Return the draft of the fetched path: unpack small files, fetch large files, then create links."""
    kept = bounded_tar.create_folder(folder, "all")
    bounds = bounded_tar.ArchiveBounds(file_bytes=large_files.LARGE_BYTES)
    links = _extract(folder / "small", kept, lambda name: _is_under(name, there.name), bounds)
    for one in packed.large:
        path = bounded_tar.create_folder(kept, os.path.dirname(one.name)) / os.path.basename(one.name)
        if os.path.lexists(path):
            raise UnusableDocument(f"it holds {untrusted_input.printable_line(one.name)} twice")
        _fetch_whole(machine, str(there.parent / one.name), path, one.size)
        path.chmod(bounded_tar.safe_mode(one.mode))
    _tell_left_out(bounded_tar.make_links(kept, links))
    top = kept / there.name
    if not top.exists() or top.is_dir() is not packed.is_folder:
        raise UnusableDocument(f"it does not hold {untrusted_input.printable_line(there.name)}")
    return top


def _extract(
    packed: Path, kept: Path, is_wanted: Callable[[str], bool], bounds: bounded_tar.ArchiveBounds
) -> dict[str, str]:
    bounds = replace(bounds, bytes=min(bounds.bytes, bounded_tar.room_of(kept)))
    with packed.open("rb") as file:
        return bounded_tar.extract(file, kept, is_wanted, bounds)


def _is_under(name: str, top: str) -> bool:
    return name == top or name.startswith(f"{top}/")


def _is_kept(name: str, runs: Sequence[str], over: Sequence[str]) -> bool:
    """Return whether `fetch` requested the file: everything of a live run, only the stored files of a finished run."""
    run, *rest = name.split("/")
    return run in runs or run in over and (len(rest) <= 1 or rest[0] == "pod" and len(rest) <= 3)


def _tell_left_out(sentences: Sequence[str]) -> None:
    for one in sentences[:MOST_NAMED]:
        _log(f"left out: {one}")
    if len(sentences) > MOST_NAMED:
        _log(f"left out: {len(sentences) - MOST_NAMED} more links")


@contextlib.contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """Create `folder` and yield a temporary folder on the same disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".slipway-") as name:
        yield Path(name)


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Convert an unusable answer, or a local write failure, into SlipwayError."""
    try:
        yield
    except UnusableDocument as error:
        raise SlipwayError(
            f"{what}: the answer of the control host cannot be used: {error}; no file was changed on this machine"
        ) from None
    except OSError as error:
        raise SlipwayError(f"{what} cannot be copied: {error}; repeat the command") from None


def _fetch_whole(machine: Transport, source: str, path: Path, size: int) -> None:
    """Copy the first `size` bytes of a file; resume after a broken connection."""
    meter = Meter()
    large_files.retry_while_progressing(
        lambda: _fetch(machine, source, path, size, meter), meter, mirror.PATIENCE_S, _log
    )


def _fetch(machine: Transport, source: str, path: Path, size: int, meter: Meter) -> None:
    if large_files.applies(machine, size):
        large_files.fetch(machine, source, path, size, meter)
        return
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            piece = machine.read(source, file.tell())[:left]
            if not piece:
                raise SlipwayError(f"{source} became shorter during the copy; repeat the command")
            file.write(piece)
            meter.count(len(piece))


def _log(words: str) -> None:
    logging.getLogger(__name__).warning("%s", words)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece
