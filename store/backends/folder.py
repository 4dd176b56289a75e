"""The backend of a local folder: files are synced and renamed into place, and links never lead out of the folder."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from store import local_files, untrusted_input
from store.backends.backend import PART_BYTES, Backend, Copy, ListedFile, Source
from store.manifest import StoreError


class Folder(Backend):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.root = os.path.realpath(uri.removeprefix("file://"))

    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        found = {}
        for here, _, files in os.walk(os.path.join(self.root, under)):
            for one in files:
                path = os.path.join(here, one)
                with contextlib.suppress(FileNotFoundError):  # removed during the listing
                    if stat.S_ISREG((seen := os.lstat(path)).st_mode):
                        found[os.path.relpath(path, self.root)] = ListedFile(seen.st_size)
        return dict(sorted(found.items()))

    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        try:
            with untrusted_input.opened(untrusted_input.resolve_within(self.root, name)) as file:
                file.seek(start)
                return file.read(min(stop - start, PART_BYTES))
        except untrusted_input.UnusableDocument as error:
            raise StoreError(f"{self.uri}: {error}") from None

    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        assert guard is None, "a folder is kept by its lock"
        for name, source in new.items():
            folder, _, last = os.path.join(self.root, name).rpartition("/")
            os.makedirs(folder, exist_ok=True)
            if os.path.realpath(folder) != folder:
                raise StoreError(f"{folder} leads out of the store through a symbolic link")
            pieces = _pieces(Path(self.root, source.name) if isinstance(source, Copy) else source)
            local_files.write_whole(f"{folder}/{last}", pieces, draft_name=f".{last}.draft")
            local_files.sync(folder)
        for name in gone:
            path = os.path.join(self.root, name)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            folder = os.path.dirname(path)
            with contextlib.suppress(OSError):  # not empty, or removed by a concurrent process
                while folder.startswith(f"{self.root}/"):
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)

    def create(self) -> bool:
        was_there = os.path.isdir(self.root)
        os.makedirs(self.root, exist_ok=True)
        return not was_there

    def create_command(self) -> str:
        return f"mkdir -p {self.root}"


def _pieces(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with Path(source).open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece
