"""The only writer of `pod/`, the local copy of a pod's folder. Files stay within size limits and never follow links.

The functions take pieces of files under paths allowed by `store.untrusted_names`, and write files below `pod/`.
`cuts.json` lists the files copied only in part or not at all. A size reported by a pod is no limit.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from infra.agent.job import write_durably
from infra.errors import SlipwayError
from infra.runs.run_home import RunHome
from infra.runs.sync import room
from infra.transport.protocol import READ_BYTES, Transport
from infra.units import count, size
from store import local_files, outside
from store.untrusted_names import NamedSizes, is_inside

MIB = 1 << 20
MARK_BYTES = MIB
FILE_BYTES = 256 * MIB  # Limit of one log, or of the metrics of one phase.
RUN_BYTES = 2048 * MIB  # Limit of all files of a run together.
MOST_FILES = 2000
MOST_CUTS = 5  # Number of entries shown in full.


def place(root: Path, path: str) -> Path:
    """Return the local path of a fetched file below `root`; create the folders and remove a link at the path.

    Raises SlipwayError if the path leads out of `root`, or if a folder on the path is a link.
    """
    if not is_inside(path):
        raise SlipwayError(f"{outside.shown(path)} is not a valid name of a fetched file; the file was not written")
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
        return outside.content(outside.within(root, path), most) if is_inside(path) else _absent(path)
    except outside.UnusableDocument as error:
        raise FileNotFoundError(f"{root}/{path}: {error}") from None


def _absent(path: str) -> bytes:
    raise FileNotFoundError(outside.shown(path))


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

    left: int

    @staticmethod
    def of(home: RunHome) -> "FetchRoom":
        held = sum(held_bytes(home.pod.root / path) for path in files_below(home.pod.root) if _counts(path))
        return FetchRoom(max(0, min(RUN_BYTES - held, room.free_bytes(home.folder))))

    def share(self, here: int, wanted: int) -> int:
        """Return the allowed size of a file (`here` bytes local, `wanted` bytes on the pod), and reserve the growth."""
        size = min(wanted, FILE_BYTES, here + self.left)
        self.left -= max(0, size - here)
        return size


def _counts(path: str) -> bool:
    return path.startswith(("logs/", "state/", "work/runs/"))


def cut(path: str, here: int, there: int) -> str:
    """Return a display text for a partly copied file."""
    if here >= FILE_BYTES:
        why = f"{size(FILE_BYTES)} is the maximum per file on this machine"
    else:
        why = f"{size(RUN_BYTES)} is the maximum per run on this machine, and the disk is not filled"
    return f"{outside.printable(path)}: the first {size(here)} of {size(there)} are here ({why})"


def cuts_of(listing: NamedSizes) -> list[str]:
    """Return display texts for the files of a listing that cannot be fetched."""
    found = []
    if listing.num_refused:
        names = ", ".join(outside.shown(one) for one in listing.refused)
        found.append(
            f"{count(listing.num_refused, 'file')} of the pod cannot be downloaded, because of the names: {names}"
        )
    if listing.is_cut:
        found.append(f"only the first {len(listing.sizes)} files are downloaded")
    return found


def note_cuts(home: RunHome, part: str, cuts: Sequence[str]) -> None:
    """Record the partly copied files of a part, such as logs or results, in `cuts.json`."""
    known = _noted(home)
    if known.get(part, []) != list(cuts):
        write_durably(place(home.pod.root, home.cuts.name), json.dumps({**known, part: list(cuts)}, indent=1))


def cuts_at_home(home: RunHome) -> list[str]:
    """Return display texts for the pod's files copied only in part or not at all."""
    found = [str(one) for cuts in _noted(home).values() for one in cuts]
    more = len(found) - MOST_CUTS
    return [*found[:MOST_CUTS], f"{count(more, 'file')} more"] if more > 0 else found


def _noted(home: RunHome) -> dict[str, list[str]]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        said = outside.mapping(content(home.pod.root, home.cuts.name, MIB))
        return {part: cuts for part, cuts in said.items() if type(cuts) is list}
    return {}
