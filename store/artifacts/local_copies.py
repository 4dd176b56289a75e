"""Copies on this disk of artifacts that lie elsewhere: the inputs of steps, downloaded once and verified each time.

In: a manifest and the backend that holds its files. Out: a folder with them. On a pod the copies lie in its work
folder and end with it; elsewhere in the user's cache. All of it may be removed at any time. A copy that was interrupted
resumes where it ended.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from store import local_files
from store.artifacts.folder_store import FolderStore
from store.backends.backend import Backend, ListedFile
from store.manifest import FileEntry, Manifest, StoreError, kept_name


class Mirror:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        work = os.environ.get("SLIPWAY_WORK")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway"
        root = (Path(work) / ".stores" if work else cache / "stores") / hashlib.sha256(uri.encode()).hexdigest()[:16]
        self.store = FolderStore(str(root.absolute()))
        self.root = Path(os.path.realpath(root))

    def bring(self, manifest: Manifest, place: Backend, at: str, there: Mapping[str, ListedFile]) -> Path:
        """Return a folder with the artifact's files, each verified; download it when it is missing.

        Raises StoreError.
        """
        try:
            with self._alone(manifest) as draft:  # the first of several processes of a training downloads it
                if not self._holds(manifest):
                    self._bring_all(manifest, draft, place, at, there)
        except OSError as error:
            raise StoreError(f"bringing {manifest.name} from {self.uri} to {self.root}: {error}") from error
        return self.store.path(manifest.name, manifest.fingerprint)

    def seed(self, folder: Path, manifest: Manifest) -> None:
        """Keep what was just published, by links where the disk is the same: steps that follow need not fetch it."""
        with self._alone(manifest) as draft:
            shutil.rmtree(draft, ignore_errors=True)
            for entry in manifest.files:
                target = draft / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(folder / entry.path, target)
                except OSError:
                    shutil.copyfile(folder / entry.path, target)
            self.store.adopt(draft, _kept(manifest), replaces=True)

    def _bring_all(
        self, manifest: Manifest, draft: Path, place: Backend, at: str, there: Mapping[str, ListedFile]
    ) -> None:
        wanted = {draft / entry.path for entry in manifest.files}
        for path in [path for path in draft.rglob("*") if path.is_file() and path not in wanted]:
            path.unlink()  # draft of another attempt for the same name
        for entry in manifest.files:
            self._bring(entry, manifest.place(entry.path), draft / entry.path, place, at, there)
        self.store.adopt(draft, _kept(manifest), replaces=True)

    def _holds(self, manifest: Manifest) -> bool:
        kept = _kept(manifest).name
        if self.store.check(kept).problem:
            return False
        here = {(entry.path, entry.sha256) for entry in self.store.manifest(kept).files}
        return here == {(entry.path, entry.sha256) for entry in manifest.files}

    @contextlib.contextmanager
    def _alone(self, manifest: Manifest) -> Iterator[Path]:
        """Yield the folder in which that artifact is downloaded, locked against other processes."""
        self.root.mkdir(parents=True, exist_ok=True)
        draft = self.root / f".draft-{hashlib.sha256(manifest.name.encode()).hexdigest()[:16]}"
        with local_files.held(f"{draft}.lock"):
            yield draft

    def _bring(
        self, file: FileEntry, name: str, path: Path, place: Backend, at: str, there: Mapping[str, ListedFile]
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):  # an earlier attempt may have left a part of another file: then all of it is downloaded
            digest = hashlib.sha256()
            with path.open("a+b") as copy:
                copy.seek(0)
                while chunk := copy.read(1 << 20):
                    digest.update(chunk)
                start = copy.tell()
                with contextlib.suppress(FileNotFoundError):
                    for piece in place.pieces(name, at, start, "" if at else there[name].version):
                        copy.write(piece)
                        digest.update(piece)
            if digest.hexdigest() == file.sha256:
                return
            path.unlink()
            if start == 0:
                break
        raise StoreError(f"{name} in {self.uri}: the copy differs from what was published (by its sha256)")


def _kept(manifest: Manifest) -> Manifest:
    """Return the same manifest under its fingerprint's name, which is all that a copy is asked for."""
    return replace(manifest, name=kept_name(manifest.name, manifest.fingerprint), flat=False)
