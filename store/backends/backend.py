"""The storage interface of all backends, and the choice of a backend by the scheme of a URI.

A `Backend` is a folder, bucket or repository with files under relative names. The rest of the store uses only these
methods. Two flags describe the differences: `is_atomic` (all files of a `put` appear at once) and `compares_and_sets`
(a write can be conditional on the replaced version). The client library of a backend is imported when a store with this
scheme is opened.
"""

import hashlib
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from store import credentials, packs
from store.manifest import NoStore, StoreError
from store.patience import clean

PART_BYTES = 8 << 20  # size of a read range and of an uploaded part
FIRST_BYTES = 1 << 20
SMALL_BYTES = 16 << 20  # upper bound for our manifests, marks and lists
BACKENDS: Mapping[str, str] = {
    "": "store.backends.folder:Folder",
    "file": "store.backends.folder:Folder",
    "s3": "store.backends.s3:Bucket",
    "gs": "store.backends.gs:GoogleBucket",
    "hf": "store.backends.hub:Repository",
    "memory": "store.backends.fsspec:Other",
}


class FileTooLarge(StoreError, ValueError):
    """A file expected to be a manifest, mark or list exceeds SMALL_BYTES."""


@dataclass(frozen=True)
class ListedFile:
    """The entry of a file in the listing of a backend."""

    size: int
    version: str = ""
    """Version tag that changes with the content; "" on backends without versions."""
    sha256: str = ""
    """Digest reported by the backend; "" on backends without digests."""


@dataclass(frozen=True)
class Copy:
    """A file of the same backend to be copied to a new name."""

    name: str
    size: int
    version: str = ""


Source = Path | bytes | Copy  # local file, bytes, or file of the same backend


class Backend(ABC):
    is_atomic = False
    """True if all changes of one `put` become visible together or not at all."""
    compares_and_sets = False
    """True if `put(..., guard=(name, version))` raises Conflict when `name` has a different version by now."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def current_revision(self) -> str:
        """Return the current revision as a value for `at`, or "" on backends without revisions."""
        return ""

    @abstractmethod
    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        """Return all files at or below the folder `under`, by name; {} for a missing folder. Raise StoreError."""

    @abstractmethod
    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        """Return bytes [start, stop) of a file: at most PART_BYTES bytes, fewer at the end of the file.

        version: expected version; raise Conflict if the file has changed. Raise FileNotFoundError or StoreError.
        """

    @abstractmethod
    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        """Write the files `new` in order, each whole or not at all; then remove the files `gone` if present.

        A retry after an interruption skips data that the backend already has. guard: a name in `new` and its expected
        old version ("" for absent). Raise Conflict or StoreError.
        """

    @abstractmethod
    def create(self) -> bool:
        """Create the bucket, repository or folder; return False if it existed already. Raise StoreError."""

    @abstractmethod
    def create_command(self) -> str:
        """Return the vendor's shell command that creates the bucket or repository."""

    def check_writable(self, is_shared: bool = True) -> None:
        """Raise StoreError if no probe file can be written and removed. is_shared: or if two writers can collide."""
        name = f".probe-{uuid.uuid4().hex}"
        self.put({name: b"x"})
        self.put({}, [name])

    def version_of(self, source: Path) -> str:
        """Return the version that a local file will have after upload; "" if only the backend can tell."""
        return ""

    def read_chunks(self, name: str, at: str = "", start: int = 0, version: str = "") -> Iterator[bytes]:
        """Yield the bytes of a file from offset `start`, range by range.

        The first range is small (FIRST_BYTES) because the latency grows with the size of a range.
        """
        wanted = FIRST_BYTES
        while piece := self.get(name, start, start + wanted, at, version):
            yield piece
            start += len(piece)
            if len(piece) < wanted:
                return
            wanted = PART_BYTES

    def read_small(self, name: str, at: str = "") -> bytes:
        """Return the content of a small file: a manifest, mark or list.

        Raise FileNotFoundError, or StoreError (FileTooLarge above SMALL_BYTES).
        """
        content = b""
        for piece in self.read_chunks(name, at):
            content += piece
            if len(content) > SMALL_BYTES:
                raise FileTooLarge(f"{self.uri}: {name} has more than {SMALL_BYTES} bytes; a valid {name} is smaller")
        return content

    def sha256(self, name: str, at: str = "") -> str:
        """Return the sha256 of the file, computed from all bytes. Raise FileNotFoundError or StoreError."""
        digest = hashlib.sha256()
        for piece in self.read_chunks(name, at):
            digest.update(piece)
        return digest.hexdigest()


def open_place(uri: str) -> Backend:
    """Return the backend for a URI by scheme, without any access. Raise NoStore for an unsupported scheme.

    Other schemes of fsspec are refused here before any work starts: neither our environments nor pods have their
    clients.
    """
    kind = credentials.kind(uri)
    if kind in BACKENDS:
        found: Backend = packs.load(BACKENDS[kind])(uri)
        return found
    said = re.sub("//[^/]*@", "//", clean(uri))
    raise NoStore(
        f"store {said}: {kind}:// is not supported; a store is a folder, hf://user/repo, "
        "s3://bucket/folder or gs://bucket/folder"
    )
