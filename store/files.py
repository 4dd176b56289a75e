"""Files of a store, over fsspec: written and made durable, read back, listed.

The floor under `artifacts` and `run_folder`. A local folder has what others have not: fsync, links, atomic renames.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from store.manifest import NoStore, StoreError

CHUNK_BYTES = 1 << 20


class Files:
    """What lies under one fsspec URI or folder."""

    def __init__(self, uri: str | Path) -> None:
        """Raises StoreError when nothing here can speak to that URI. Touches nothing."""
        from fsspec.core import url_to_fs

        self.uri = str(uri)
        try:
            self._fs, root = url_to_fs(self.uri)
        except (ImportError, ValueError) as error:
            raise NoStore(f"store {self.uri}: {error}") from None
        self._is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))
        self._root = os.path.realpath(root) if self._is_local else root.rstrip("/")

    def _at(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def _find(self, place: str) -> list[str]:
        """Files at and under `place`, relative to the root."""
        self._fs.invalidate_cache()
        return [path.removeprefix(f"{self._root}/") for path in self._fs.find(place)]

    def _write(self, path: str, pieces: Iterable[bytes]) -> int:
        with self._fs.open(path, "wb") as file:
            size = sum(file.write(piece) for piece in pieces)
            if self._is_local:
                file.flush()
                os.fsync(file.fileno())
        return size

    def _sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        with self._fs.open(path, "rb") as file:
            for _ in chunks(file, digest):
                pass
        return digest.hexdigest()

    def _refuse_links(self, folder: str) -> None:
        if self._is_local and os.path.realpath(folder) != folder:
            raise StoreError(f"{folder} leads out of the store through a symbolic link")


def chunks(file: IO[bytes], digest: Any) -> Iterator[bytes]:
    """What is left of a file, in pieces, each of which `digest` has seen."""
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        yield chunk
