"""The backend of fsspec file systems without a client (`memory://`, for tests); no resume and no timeouts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from store.backends.backend import Backend, Copy, ListedFile, Source
from store.manifest import NoStore


class Other(Backend):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        from fsspec.core import url_to_fs

        try:
            self._fs, root = url_to_fs(uri)
        except (ImportError, ValueError) as error:
            raise NoStore(f"store {uri}: {error}") from None
        self._root = root.rstrip("/")

    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        self._fs.invalidate_cache()
        found = self._fs.find(f"{self._root}/{under}".rstrip("/"), detail=True)
        return {
            path.removeprefix(f"{self._root}/"): ListedFile(int(info["size"])) for path, info in sorted(found.items())
        }

    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        self._fs.invalidate_cache()
        return bytes(self._fs.cat_file(f"{self._root}/{name}", start=start, end=stop))

    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        assert guard is None, "nothing is known of this store that could compare"
        for name, source in new.items():
            path = f"{self._root}/{name}"
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            if isinstance(source, Copy):
                self._fs.cp_file(f"{self._root}/{source.name}", path)
            elif isinstance(source, Path):
                self._fs.put_file(str(source), path)
            else:
                self._fs.pipe_file(path, source)
        for name in gone:
            if self._fs.exists(f"{self._root}/{name}"):
                self._fs.rm(f"{self._root}/{name}")

    def create(self) -> bool:
        was_there = bool(self._fs.exists(self._root))
        self._fs.makedirs(self._root, exist_ok=True)
        return not was_there

    def create_command(self) -> str:
        return f"make {self.uri}"
