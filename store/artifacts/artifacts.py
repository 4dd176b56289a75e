"""The entry point for publishing, finding and verifying artifacts in a local folder or a remote store.

An artifact is a folder of files with a name, a fingerprint and a manifest. `Store` takes a folder to publish and
returns verified copies as folders on this machine. A local folder publishes by renames under a lock (`folder_store`); a
remote store publishes by writing the manifest last (`remote_store`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import credentials
from store.artifacts.folder_store import FolderStore
from store.artifacts.remote_store import RemoteStore
from store.backends.backend import open_place
from store.manifest import Artifact, Manifest, StoreError, is_kept


class Store:
    """Artifacts under one folder or URI: `hf://user/repo/folder`, `s3://bucket/folder`, `gs://bucket/folder`."""

    def __init__(self, uri: str | Path) -> None:
        """Open the store at `uri` without any access. Raise StoreError when no backend supports the scheme."""
        self.uri = str(uri)
        is_here = credentials.kind(self.uri) in ("", "file")
        self._kind: FolderStore | RemoteStore = FolderStore(self.uri) if is_here else RemoteStore(open_place(self.uri))

    def publish(
        self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool = False
    ) -> None:
        """Store the files of `folder` under `fingerprint`, verify them, then point `name` to the artifact.

        flat: put the files (without subfolders) at the root of the store, beside `<name>.artifact.json`.

        An intact artifact with this fingerprint is kept unchanged. Of two concurrent publishers of a name, either the
        last publisher wins as a whole or the store refuses one publisher. Raise StoreError on failure; the previous
        content remains.
        """
        self._kind.publish(Path(folder), name, fingerprint, about, flat)

    def write_note(self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Replace the files under `name` with the files of `folder`: a note, of which only the newest version is kept.

        Raise StoreError on failure. The old note then remains, or is missing in a store that changes objects one at a
        time.
        """
        self._kind.write_note(Path(folder), name, fingerprint, about)

    def point_name(self, name: str, fingerprint: str) -> None:
        """Point `name` to the artifact with this kind and fingerprint. Raise StoreError if no such artifact exists."""
        self._kind.point_name(name, fingerprint, flat=False)

    def remove(self, artifact: str) -> None:
        """Remove an artifact, given the `by-fingerprint/...` name used in the store. Raise StoreError on failure."""
        self._kind.remove(artifact)

    def check_writable(self) -> None:
        """Check that the user may write files to the location of the store, and remove the probe.

        Raise NoStore if writing fails, and StoreError if the check itself cannot run.
        """
        self._kind.check_writable()

    def artifacts(self) -> list[Artifact]:
        """Return all artifacts that names point to, sorted by name; see `everything`."""
        return self.list_all()[0]

    def list_all(self) -> tuple[list[Artifact], list[Artifact]]:
        """Return two lists sorted by name: artifacts under user-visible names, and artifacts under fingerprint names.

        A local store verifies every sha256. A remote store compares manifests with the listing of the backend.
        """
        found = self._kind.artifacts()
        return [one for one in found if not is_kept(one.name)], [one for one in found if is_kept(one.name)]

    def check(self, name: str, deep: bool = False) -> Artifact:
        """Return the verified artifact under `name`; `problem` is set if the artifact is missing or damaged.

        deep: read every byte in a remote store as well.
        """
        return self._kind.check(name, deep)

    def find(self, name: str, fingerprint: str) -> Artifact:
        """Return the verified artifact with this fingerprint and the kind of `name`, which may refer elsewhere."""
        return self._kind.find(name, fingerprint)[0]

    def path(self, name: str, fingerprint: str) -> Path:
        """Return a local folder with the files of the artifact, every byte verified.

        In a local store, a cached digest stays valid while the size, timestamps and inode of the file are unchanged. A
        remote artifact is downloaded first. Raise StoreError if the artifact is missing, damaged or has a different
        fingerprint.
        """
        return self._kind.path(name, fingerprint)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the artifact under `name` without verifying files.

        Raise StoreError if the store has no such manifest.
        """
        return self._kind.manifest(name)

    def manifest_of(self, name: str, fingerprint: str) -> Manifest:
        """Return the manifest of the artifact with this fingerprint and the kind of `name`. Raise StoreError."""
        found, where = self._kind.find(name, fingerprint)
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        return self._kind.manifest(where)
