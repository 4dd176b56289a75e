"""The local cache for remote artifacts: inputs of steps are downloaded once and verified on each use.

A `Mirror` takes a manifest and its backend and returns a folder with the files. On a pod the copies are in the work
folder and end with the pod; elsewhere they are in the cache folder of the user, which may be deleted at any time. An
interrupted download resumes at its last byte.
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

    def ensure_local(self, manifest: Manifest, place: Backend, at: str, there: Mapping[str, ListedFile]) -> Path:
        """Return a folder with the verified files of the artifact; download a missing artifact.

        Raise StoreError if the download or the verification fails.
        """
        try:
            with self._locked_folder(
                manifest
            ) as draft:  # the first process of a training job downloads; the others wait
                if not self._is_complete(manifest):
                    self._download_all(manifest, draft, place, at, there)
        except OSError as error:
            raise StoreError(f"{manifest.name} could not be copied from {self.uri} to {self.root}: {error}") from error
        return self.store.path(manifest.name, manifest.fingerprint)

    def seed(self, folder: Path, manifest: Manifest) -> None:
        """Add a freshly published artifact to the cache, by hard links if possible, so that later steps find a copy."""
        with self._locked_folder(manifest) as draft:
            shutil.rmtree(draft, ignore_errors=True)
            for entry in manifest.files:
                target = draft / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(folder / entry.path, target)
                except OSError:
                    shutil.copyfile(folder / entry.path, target)
            self.store.adopt(draft, _kept(manifest), replaces=True)

    def _download_all(
        self, manifest: Manifest, draft: Path, place: Backend, at: str, there: Mapping[str, ListedFile]
    ) -> None:
        wanted = {draft / entry.path for entry in manifest.files}
        for path in [path for path in draft.rglob("*") if path.is_file() and path not in wanted]:
            path.unlink()  # left by an earlier attempt for this name
        for entry in manifest.files:
            self._download_file(entry, manifest.place(entry.path), draft / entry.path, place, at, there)
        self.store.adopt(draft, _kept(manifest), replaces=True)

    def _is_complete(self, manifest: Manifest) -> bool:
        kept = _kept(manifest).name
        if self.store.check(kept).problem:
            return False
        here = {(entry.path, entry.sha256) for entry in self.store.manifest(kept).files}
        return here == {(entry.path, entry.sha256) for entry in manifest.files}

    @contextlib.contextmanager
    def _locked_folder(self, manifest: Manifest) -> Iterator[Path]:
        """Yield the download folder of the artifact, locked against other processes."""
        self.root.mkdir(parents=True, exist_ok=True)
        draft = self.root / f".draft-{hashlib.sha256(manifest.name.encode()).hexdigest()[:16]}"
        with local_files.holding_lock(f"{draft}.lock"):
            yield draft

    def _download_file(
        self, file: FileEntry, name: str, path: Path, place: Backend, at: str, there: Mapping[str, ListedFile]
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A partial file of an earlier attempt may belong to different content. On a digest mismatch, download the whole
        # file.
        for _ in range(2):
            digest = hashlib.sha256()
            with path.open("a+b") as copy:
                copy.seek(0)
                while chunk := copy.read(1 << 20):
                    digest.update(chunk)
                start = copy.tell()
                with contextlib.suppress(FileNotFoundError):
                    for piece in place.read_chunks(name, at, start, "" if at else there[name].version):
                        copy.write(piece)
                        digest.update(piece)
            if digest.hexdigest() == file.sha256:
                return
            path.unlink()
            if start == 0:
                break
        raise StoreError(f"{name} in {self.uri}: the copy has a different sha256 than the published file")


def _kept(manifest: Manifest) -> Manifest:
    """Return the manifest renamed to the fingerprint name, under which the cache stores every copy."""
    return replace(manifest, name=kept_name(manifest.name, manifest.fingerprint), flat=False)
