"""The storage interface: names, bytes, and what a backend can promise about them.

`Backend` is one folder, bucket or repository; under it there are files by relative name. Everything above works through
these verbs. Backends differ in three flags, not in exceptions: whether many files change at once (`is_atomic`), whether
a write can be made to depend on what it replaces (`compares_and_sets`), and whether it is of this machine.
"""

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from store.manifest import StoreError

PART_BYTES = 8 << 20  # bytes of one range that is read, and of one part that is sent
FIRST_BYTES = 1 << 20
SMALL_BYTES = 16 << 20  # no manifest, mark or list of ours is larger


class NotSmall(StoreError, ValueError):
    """A file that should be a manifest, a mark or a list is larger than any of ours."""


@dataclass(frozen=True)
class ListedFile:
    """One file as its place lists it."""

    size: int
    version: str = ""
    """Changes whenever the content does; "" where the place has no such thing."""
    sha256: str = ""
    """Digest by the place itself; "" where it has none."""


@dataclass(frozen=True)
class Copy:
    """A file that is there already, under another name."""

    name: str
    size: int
    version: str = ""


Source = Path | bytes | Copy  # a file of this machine, the bytes themselves, or a file of the same place


class Backend(ABC):
    is_atomic = False
    """True if all that one `put` changes becomes visible at once, or not at all."""
    compares_and_sets = False
    """True if `put(..., guard=(name, version))` is refused when that file is not at that version any more."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def pin(self) -> str:
        """Return a revision under which the files stay as they are now, for `at`; "" where there is none."""
        return ""

    @abstractmethod
    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        """Return every file at or below the folder `under`, by name; {} where there is none. Raises StoreError."""

    @abstractmethod
    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        """Return bytes [start, stop) of a file, at most PART_BYTES of them, fewer at its end.

        version: raises Conflict when it has another one meanwhile. Raises FileNotFoundError, StoreError.
        """

    @abstractmethod
    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        """Write files, in this order, each of them whole or not at all; then remove others, where they are there.

        What of a cut-off call arrived is not sent again. guard: (one of `new`, its version before or "" for absent).
        Raises Conflict, StoreError.
        """

    @abstractmethod
    def create(self) -> bool:
        """Make the bucket, repository or folder. False when it was there already. Raises StoreError."""

    @abstractmethod
    def creation(self) -> str:
        """Return the command of the vendor's own tool that creates the bucket or repository."""

    def check_writable(self) -> None:
        """Raise StoreError unless files may be written here, and removed: try it under a hidden name."""
        name = f".probe-{uuid.uuid4().hex}"
        self.put({name: b"x"})
        self.put({}, [name])

    def version_of(self, source: Path) -> str:
        """Return the version that a file will have; "" where only the backend knows."""
        return ""

    def pieces(self, name: str, at: str = "", start: int = 0, version: str = "") -> Iterator[bytes]:
        """Yield the bytes of a file from `start`, range by range.

        Small ranges come first, as the time for a range grows with it.
        """
        wanted = FIRST_BYTES
        while piece := self.get(name, start, start + wanted, at, version):
            yield piece
            start += len(piece)
            if len(piece) < wanted:
                return
            wanted = PART_BYTES

    def small(self, name: str, at: str = "") -> bytes:
        """Return the content of a small file: a manifest, a mark, a list.

        Raises FileNotFoundError, StoreError (NotSmall).
        """
        content = b""
        for piece in self.pieces(name, at):
            content += piece
            if len(content) > SMALL_BYTES:
                raise NotSmall(f"{self.uri}: {name} has more than {SMALL_BYTES} bytes, which it cannot have")
        return content

    def sha256(self, name: str, at: str = "") -> str:
        """Return the sha256 of the file as it is now, every byte of it read. Raises FileNotFoundError, StoreError."""
        digest = hashlib.sha256()
        for piece in self.pieces(name, at):
            digest.update(piece)
        return digest.hexdigest()
