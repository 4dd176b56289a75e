"""Bounded extraction of an untrusted tar.gz archive into a draft folder, and the move of the draft into place.

Extraction creates regular files and folders under names inside the draft folder, with harmless permissions and within
the byte bounds. Links are created after all files, so no file is written through a link, neither in the draft nor at
the destination.
"""

import gzip
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infra.errors import SlipwayError, UsageError
from infra.units import size as in_words
from store import untrusted_input
from store.untrusted_input import UnusableDocument

ENTRIES = 1_000_000
ARCHIVE_BYTES = 16 << 30  # total size of the files of an archive
RESERVE_BYTES = 256 << 20  # free space to leave on the local disk
PIECE_BYTES = 1 << 20  # maximum size of a header read
# Errors raised by tarfile and zlib for malformed or malicious archives.
BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True)
class ArchiveBounds:
    """Limits in bytes for a file of an archive, and for all files; and the maximum number of entries."""

    file_bytes: int = ARCHIVE_BYTES
    bytes: int = ARCHIVE_BYTES
    entries: int = ENTRIES


def room_of(folder: Path) -> int:
    """Return the number of bytes that may be written to the disk of a folder."""
    return max(0, shutil.disk_usage(folder).free - RESERVE_BYTES)


def refuse_without_room(what: str, num_bytes: int, folder: Path) -> None:
    """Raise SlipwayError when writing `num_bytes` would leave less free space than RESERVE_BYTES."""
    room = room_of(folder)
    if num_bytes > room:
        raise SlipwayError(
            f"{what} has {in_words(num_bytes)}, but {folder} has room for {in_words(room)}; no file was "
            "copied. Free space on the disk, or choose a different place: --to PATH"
        )


def safe_mode(mode: int) -> int:
    """Return safe permissions for a foreign file: owner read/write, no write for others, no set-id bits."""
    return mode & (0o755 if mode & 0o100 else 0o644) | 0o600


def extract(
    file: IO[bytes], folder: Path, is_wanted: Callable[[str], bool], bounds: ArchiveBounds | None = None
) -> dict[str, str]:
    """Write the files and folders of an archive under `folder`; return the links as a mapping of name to target.

    Raises UnusableDocument, with the files written so far left in place, and OSError.
    """
    bounds = bounds or ArchiveBounds()
    try:
        stream = _Unzipped(file, bounds)
        with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
            return _Extraction(tar, folder, is_wanted, bounds).run()
    except UnusableDocument:
        raise
    except BROKEN as error:
        raise UnusableDocument(f"{type(error).__name__}: {error}") from None


def make_links(folder: Path, links: dict[str, str]) -> list[str]:
    """Create the links that stay inside `folder`; return a sentence for each omitted link."""
    return [why for name, target in sorted(links.items()) if (why := _make_link(folder, name, target))]


def put(source: Path, target: Path) -> None:
    """Move a file, or a folder entry by entry, into place; entries of the same kind are replaced.

    Raises UsageError for an entry of a different kind, before any move.
    """
    folders: list[tuple[Path, Path]] = []
    others: list[tuple[Path, Path]] = []
    for one, place in _walk(source, target):
        is_folder = stat.S_ISDIR(one.lstat().st_mode)
        (folders if is_folder else others).append((one, place))
        _refuse_another_kind(place, is_folder, is_top=one == source)
    for _, place in folders:
        place.mkdir(parents=True, exist_ok=True)
    for one, place in others:
        os.replace(one, place)


class _Unzipped:
    """The decompressed stream of a gzip file for tarfile, with bounds on piece size and total size."""

    def __init__(self, file: IO[bytes], bounds: ArchiveBounds) -> None:
        self._file = gzip.GzipFile(fileobj=file)
        self._most = bounds.bytes + bounds.entries * 4 * tarfile.BLOCKSIZE
        self.tell = self._file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= PIECE_BYTES:
            raise UnusableDocument(f"a part of the list of files has {size} bytes; the limit is {PIECE_BYTES}")
        self._refuse_end(self.tell() + size)
        return self._file.read(size)

    def seek(self, position: int) -> int:
        self._refuse_end(position)
        return self._file.seek(position)

    def _refuse_end(self, position: int) -> None:
        if position > self._most:
            raise UnusableDocument(f"the archive unpacks to more than {in_words(self._most)}")


@dataclass
class _Extraction:
    tar: tarfile.TarFile
    folder: Path
    is_wanted: Callable[[str], bool]
    bounds: ArchiveBounds

    def __post_init__(self) -> None:
        self.num_bytes = self.num_entries = 0
        self.links: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        for member in self.tar:
            # tarfile would keep every member in memory.
            self.tar.members = []  # type: ignore[attr-defined]
            self.num_entries += 1
            if self.num_entries > self.bounds.entries:
                raise UnusableDocument(f"the archive has more than {self.bounds.entries} files")
            name = untrusted_input.relative(member.name)
            if not self.is_wanted(name):
                raise UnusableDocument(
                    f"the archive holds {untrusted_input.printable_line(name)}, which was not requested"
                )
            self._extract(member, name)
        return self.links

    def _extract(self, member: tarfile.TarInfo, name: str) -> None:
        if member.isdir():
            create_folder(self.folder, name)
        elif member.issym():
            self.links[name] = member.linkname
        elif member.islnk():
            self._copy(member, name)
        elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            self._count(name, member.size)
            with self._new(name, member.mode) as file:
                shutil.copyfileobj(self.tar.extractfile(member), file)  # type: ignore[arg-type]
        else:
            raise UnusableDocument(f"{untrusted_input.printable_line(name)} is neither a file nor a folder nor a link")

    def _copy(self, member: tarfile.TarInfo, name: str) -> None:
        """Write a hard link as a separate file; the link target must be a file of the same archive."""
        first = self.folder / untrusted_input.relative(member.linkname)
        if not (first.is_file() and member.linkname not in self.links):
            raise UnusableDocument(
                f"{untrusted_input.printable_line(name)} is a hard link to "
                f"{untrusted_input.printable_line(member.linkname)}, which is not a file of this archive"
            )
        self._count(name, first.stat().st_size)
        with first.open("rb") as source, self._new(name, first.stat().st_mode) as file:
            shutil.copyfileobj(source, file)

    def _count(self, name: str, size: int) -> None:
        self.num_bytes += size
        if size > self.bounds.file_bytes:
            raise UnusableDocument(
                f"{untrusted_input.printable_line(name)} has {in_words(size)}; the limit for a file is "
                f"{in_words(self.bounds.file_bytes)}"
            )
        if self.num_bytes > self.bounds.bytes:
            raise UnusableDocument(f"the archive unpacks to more than {in_words(self.bounds.bytes)}")

    def _new(self, name: str, mode: int) -> IO[bytes]:
        path = self.folder / name
        create_folder(self.folder, os.path.dirname(name))
        try:
            return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, safe_mode(mode)), "wb")
        except FileExistsError:
            raise UnusableDocument(f"it holds {untrusted_input.printable_line(name)} twice") from None


def create_folder(folder: Path, name: str) -> Path:
    """Create the folder `name` under `folder`.

    Raises UnusableDocument when the archive also holds a file of that name.
    """
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UnusableDocument(
            f"{untrusted_input.printable_line(name)} is both a file and a folder in the archive"
        ) from None
    return folder / name


def _make_link(folder: Path, name: str, target: str) -> str:
    if os.path.lexists(folder / name):
        raise UnusableDocument(f"the archive holds {untrusted_input.printable_line(name)} twice")
    why = _leads_out(name, target)
    if why:
        return f"{untrusted_input.printable(name)}, a link to {untrusted_input.printable(target[:200])}: {why}"
    create_folder(folder, os.path.dirname(name))
    os.symlink(target, folder / name)
    return ""


def _leads_out(name: str, target: str) -> str:
    """Return the reason for leaving a link out; "" when the target stays inside the first folder of `name`.

    Parent steps (`..`) are allowed only at the start, where they leave real folders.
    """
    if target.startswith("/"):
        return "the target is an absolute path on the other machine"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    above = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if above > len(name.split("/")) - 2 or ".." in parts[above:]:
        return "the target may lie outside of the requested path"
    try:
        untrusted_input.relative("/".join(parts[above:]) or "x")
    except UnusableDocument as error:
        return str(error)
    return ""


def _walk(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the entries of a draft with their destinations, folders before their content."""
    yield source, target
    if stat.S_ISDIR(source.lstat().st_mode):
        for one in sorted(source.iterdir()):
            yield from _walk(one, target / one.name)


def _refuse_another_kind(place: Path, is_folder: bool, is_top: bool) -> None:
    try:
        mode = (place.stat() if is_top and is_folder else place.lstat()).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(mode) is not is_folder:
        here = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a file"
        raise UsageError(
            f"{place} is {here} on this machine but {'a folder' if is_folder else 'a file'} on the "
            "control host; no file was changed. Move the local path away, or choose a different place: --to "
            "PATH"
        )
