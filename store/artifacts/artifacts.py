"""Publishing, finding and verifying artifacts, wherever they are kept.

In: a folder's files under a name, with a fingerprint. Out: the same files, verified, in a folder of this machine. How
that is done differs: in a folder by renames under a lock (`folder_store`), elsewhere by a manifest that is written
last (`remote_store`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import credentials
from store.artifacts.folder_store import FolderStore
from store.artifacts.remote_store import RemoteStore
from store.backends.by_uri import open_place
from store.manifest import Artifact, Manifest, StoreError, is_kept


class Store:
    """Artifacts under one folder or URI: `hf://user/repo/folder`, `s3://bucket/folder`, `gs://bucket/folder`."""

    def __init__(self, uri: str | Path) -> None:
        """Open the store at `uri`, touching nothing. Raises StoreError when no backend here speaks to that URI."""
        self.uri = str(uri)
        is_here = credentials.kind(self.uri) in ("", "file")
        self._kind: FolderStore | RemoteStore = FolderStore(self.uri) if is_here else RemoteStore(open_place(self.uri))

    def publish(
        self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool = False
    ) -> None:
        """Keep the files of `folder` by their fingerprint, once they were read back, and have `name` stand for them.

        flat: under the name they lie (no subfolders) at the store's root, beside `<name>.artifact.json`.
        What has that fingerprint and is whole stays as it is. Of two publishers of one name the last wins, whole, or
        one of them is refused. Raises StoreError; what was there is then still there.
        """
        self._kind.publish(Path(folder), name, fingerprint, about, flat)

    def write_down(self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Copy the files of `folder` under `name`, in place of what was there: a note, of which the newest counts.

        Raises StoreError; what was there is then still there, or missing where one object changes at a time.
        """
        self._kind.write_down(Path(folder), name, fingerprint, about)

    def point(self, name: str, fingerprint: str) -> None:
        """Point `name` to the artifact of its kind and that fingerprint. Raises StoreError when there is none."""
        self._kind.point(name, fingerprint, flat=False)

    def remove(self, artifact: str) -> None:
        """Remove an artifact by the name under which it is kept. Raises StoreError."""
        self._kind.remove(artifact)

    def check_writable(self) -> None:
        """Check that files can be written where the store is, or will be; leave nothing behind.

        Raises NoStore when no file can be written there, StoreError when it cannot be found out.
        """
        self._kind.check_writable()

    def artifacts(self) -> list[Artifact]:
        """Return every artifact that a name refers to, by name; see `everything`."""
        return self.everything()[0]

    def everything(self) -> tuple[list[Artifact], list[Artifact]]:
        """Return the artifacts that names refer to, and those that are kept by their fingerprint, each by name.

        In a folder each was verified by sha256; elsewhere by what its store lists.
        """
        found = self._kind.artifacts()
        return [one for one in found if not is_kept(one.name)], [one for one in found if is_kept(one.name)]

    def check(self, name: str, deep: bool = False) -> Artifact:
        """Return the artifact that a name refers to, verified; `problem` says when it is missing or damaged.

        deep: read every byte also where the store is reached over a network.
        """
        return self._kind.check(name, deep)

    def find(self, name: str, fingerprint: str) -> Artifact:
        """Return the verified artifact of that fingerprint and of the kind of `name`, whatever that name refers to."""
        return self._kind.find(name, fingerprint)[0]

    def path(self, name: str, fingerprint: str) -> Path:
        """Return the folder with the files of that artifact, every byte verified.

        In a folder of this machine a digest holds while size, times and inode of a file stay as they were.

        An artifact that lies elsewhere is downloaded first. Raises StoreError when it is missing, damaged or has
        another fingerprint.
        """
        return self._kind.path(name, fingerprint)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of the artifact that a name refers to; nothing is verified.

        Raises StoreError when there is none.
        """
        return self._kind.manifest(name)

    def manifest_of(self, name: str, fingerprint: str) -> Manifest:
        """Return the manifest of the artifact of that fingerprint and of the kind of `name`. Raises StoreError."""
        found, where = self._kind.find(name, fingerprint)
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        return self._kind.manifest(where)
