"""The only writer of `pod/`, the local copy of a pod's folder: the listing of a pod's files, and the room on the disk.

The functions take pieces of files under paths allowed by `store.untrusted_input`, and write files below `pod/`; files
stay within size limits and never follow links. `cuts.json` lists the files copied only in part or not at all. A size
reported by a pod is no limit. Each entry of a listing ends with NUL, which no file name can contain, so that a file
name cannot forge an entry. A reserve stays free on the local disk.
"""

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from infra.agent.job import write_durably
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.transport.protocol import LIST, READ_BYTES, Transport
from infra.units import count, size
from store import local_files, untrusted_input
from store.untrusted_input import NamedSizes, is_inside, read_listing

MIB = 1 << 20
MARK_BYTES = MIB
FILE_BYTES = 256 * MIB  # Limit of one log, or of the metrics of one phase.
RUN_BYTES = 2048 * MIB  # Limit of all files of a run together.
MOST_FILES = 2000
MOST_CUTS = 5  # Number of entries shown in full.
RESERVE_BYTES, RESERVE_SHARE = 1 << 30, 0.05  # The smaller of both stays free, regardless of the download size.
LIST_S = 30.0
LISTING_BYTES = 1 << 20
RESULTS = "work/checkpoints/*/step-*/MANIFEST.json work/runs/*/*.jsonl state/marks/*.json"


def place(root: Path, path: str) -> Path:
    """Return the local path of a fetched file below `root`; create the folders and remove a link at the path.

    Raises SlipwayError if the path leads out of `root`, or if a folder on the path is a link.
    """
    if not is_inside(path):
        raise SlipwayError(
            f"{untrusted_input.printable_line(path)} is not a valid name of a fetched file; the file was not written"
        )
    parts = path.split("/")
    root.parent.mkdir(parents=True, exist_ok=True)
    for number in range(len(parts)):
        _make_folder(root.joinpath(*parts[:number]))
    target = root.joinpath(*parts)
    with contextlib.suppress(FileNotFoundError):
        seen = os.lstat(target)
        is_own = stat.S_ISDIR(seen.st_mode) or stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1
        if not is_own:
            os.unlink(target)
    return target


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise SlipwayError(f"{folder} is a link or not a folder, so no files are written there; run: rm {folder}")


def replace(root: Path, path: str, pieces: Iterable[bytes]) -> Path:
    """Replace a fetched file atomically, and return the path."""
    target = place(root, path)
    local_files.write_whole(target, pieces, mode=0o600)
    return target


def opened(root: Path, path: str) -> BinaryIO:
    """Open a fetched file for reading and writing in place; create a missing file."""
    descriptor = os.open(place(root, path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return open(descriptor, "r+b")


def held_bytes(path: Path) -> int:
    """Return the size of a regular file, or 0 without a regular file."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        seen = os.lstat(path)
        return seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return 0


def files_below(root: Path) -> Iterator[str]:
    """Yield the relative paths of the regular files below `root`; never follow or yield a link."""
    for folder, _, names in os.walk(root, followlinks=False):
        for name in sorted(names):
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):  # The file was removed in the meantime.
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield os.path.relpath(path, root).replace(os.sep, "/")


def content(root: Path, path: str, most: int = FILE_BYTES) -> bytes:
    """Return the content of a fetched file. Raises FileNotFoundError without a regular file inside `root`."""
    try:
        return (
            untrusted_input.content(untrusted_input.resolve_within(root, path), most)
            if is_inside(path)
            else _absent(path)
        )
    except untrusted_input.UnusableDocument as error:
        raise FileNotFoundError(f"{root}/{path}: {error}") from None


def _absent(path: str) -> bytes:
    raise FileNotFoundError(untrusted_input.printable_line(path))


def pieces_of(transport: Transport, source: str, most: int) -> Iterator[bytes]:
    """Yield the first `most` bytes of a pod's file. Raises FileNotFoundError."""
    begin = 0
    while begin < most:
        piece = transport.read(source, begin)
        yield piece[: most - begin]
        begin += len(piece)
        if len(piece) < READ_BYTES:
            return


@dataclass
class FetchRoom:
    """The bytes still available to the logs, metrics and marks of a run on the local disk."""

    remaining_bytes: int

    @staticmethod
    def for_home(home: RunHome) -> "FetchRoom":
        held = sum(held_bytes(home.pod.root / path) for path in files_below(home.pod.root) if _counts(path))
        return FetchRoom(max(0, min(RUN_BYTES - held, free_bytes(home.folder))))

    def reserve(self, here: int, wanted: int) -> int:
        """Return the allowed size of a file (`here` bytes local, `wanted` bytes on the pod), and reserve the growth."""
        size = min(wanted, FILE_BYTES, here + self.remaining_bytes)
        self.remaining_bytes -= max(0, size - here)
        return size


def _counts(path: str) -> bool:
    return path.startswith(("logs/", "state/", "work/runs/"))


def describe_cut(path: str, here: int, there: int) -> str:
    """Return a display text for a partly copied file."""
    if here >= FILE_BYTES:
        why = f"{size(FILE_BYTES)} is the maximum per file on this machine"
    else:
        why = f"{size(RUN_BYTES)} is the maximum per run on this machine, and the disk is not filled"
    return f"{untrusted_input.printable(path)}: the first {size(here)} of {size(there)} are here ({why})"


def cuts_of(listing: NamedSizes) -> list[str]:
    """Return display texts for the files of a listing that cannot be fetched."""
    found = []
    if listing.num_refused:
        names = ", ".join(untrusted_input.printable_line(one) for one in listing.refused)
        found.append(
            f"{count(listing.num_refused, 'file')} of the pod cannot be downloaded, because of the names: {names}"
        )
    if listing.is_truncated:
        found.append(f"only the first {len(listing.sizes)} files are downloaded")
    return found


def note_cuts(home: RunHome, part: str, cuts: Sequence[str]) -> None:
    """Record the partly copied files of a part, such as logs or results, in `cuts.json`."""
    known = _noted(home)
    if known.get(part, []) != list(cuts):
        write_durably(place(home.pod.root, home.cuts.name), json.dumps({**known, part: list(cuts)}, indent=1))


def read_cuts(home: RunHome) -> list[str]:
    """Return display texts for the pod's files copied only in part or not at all."""
    found = [str(one) for cuts in _noted(home).values() for one in cuts]
    more = len(found) - MOST_CUTS
    return [*found[:MOST_CUTS], f"{count(more, 'file')} more"] if more > 0 else found


def _noted(home: RunHome) -> dict[str, list[str]]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        said = untrusted_input.mapping(content(home.pod.root, home.cuts.name, MIB))
        return {part: cuts for part, cuts in said.items() if type(cuts) is list}
    return {}


def reserve_problem(folder: Path, reserve_bytes: int) -> str:
    """Return an error text if the disk of a folder has less than the reserve left, or ""."""
    there = _existing(folder)
    free = shutil.disk_usage(there).free
    if free >= reserve_bytes:
        return ""
    return (
        f"{size(free)} are free on the disk of {there}, and {size(reserve_bytes)} must stay free "
        "(SLIPWAY_RESERVE_BYTES): logs and results of runs stay on the pods until the pods end, "
        "and are not downloaded; free some disk space"
    )


def check_reserve(folder: Path, reserve_bytes: int) -> None:
    """Raise SlipwayError if the disk of a folder has less than the reserve left."""
    if why := reserve_problem(folder, reserve_bytes):
        raise SlipwayError(why)


def free_bytes(folder: Path) -> int:
    """Return the bytes available to downloads on the disk of a folder."""
    disk = shutil.disk_usage(_existing(folder))
    return max(0, disk.free - min(RESERVE_BYTES, int(RESERVE_SHARE * disk.total)))


def check_fits(what: str, num_bytes: int, folder: Path) -> None:
    """Raise SlipwayError if `num_bytes` do not fit on the disk of a folder."""
    if num_bytes > (free := free_bytes(folder)):
        raise SlipwayError(
            f"{what} has {size(num_bytes)}, but {folder} has room for {size(free)}; "
            "nothing was downloaded. Free some space on this disk"
        )


def _existing(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))


def listed(op: Op, transport: Transport, patterns: str) -> NamedSizes:
    """Return the files on the pod matching the patterns, by path in the pod's folder. Raises SlipwayError."""
    words = ["sh", "-c", LIST, "sh", str(folder_of(op).root), patterns, str(LISTING_BYTES)]
    done = transport.run(words, timeout_s=LIST_S)
    if done.exited != 0:
        raise SlipwayError(
            f"{op.run}: listing the files of the pod: {done.stderr.strip() or f'exit code {done.exited}'}"
        )
    return read_listing(done.stdout[: 2 * LISTING_BYTES], MOST_FILES)
