"""Publishing, finding and verifying artifacts, wherever they are kept.

In: a folder's files under a name, with a fingerprint. Out: the same files, verified, in a folder of this machine. How
that is done differs: in a folder by renames under a lock (`folder_store`), elsewhere by a manifest that is written
last (`remote_store`). Called by every floor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import credentials
from store.folder_store import FolderStore
from store.manifest import Artifact, Manifest
from store.remote_store import RemoteStore
from store.seam import open_place


class Store:
    """Artifacts under one folder or URI: `hf://user/repo/folder`, `s3://bucket/folder`."""

    def __init__(self, uri: str | Path) -> None:
        """Raises StoreError when nothing here can speak to that URI. Touches nothing."""
        self.uri = str(uri)
        is_here = credentials.kind(self.uri) in ("", "file")
        self._kind: FolderStore | RemoteStore = FolderStore(self.uri) if is_here else RemoteStore(open_place(self.uri))

    def publish(
        self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool = False
    ) -> None:
        """Copy the files of `folder` under `name`, in place of what was there, once they were read back.

        flat: the files (no subfolders) lie at the store's root, beside the manifest `<name>.artifact.json`.
        Of two publishers of one name the last wins, whole, or one of them is refused. Raises StoreError; what was
        there is then still there, or, in a store that changes one object at a time, missing.
        """
        self._kind.publish(Path(folder), name, fingerprint, about, flat)

    def check_writable(self) -> None:
        """Raises NoStore when no file can be written where the store is, or will be; StoreError when it does not say.

        Leaves nothing behind.
        """
        self._kind.check_writable()

    def artifacts(self) -> list[Artifact]:
        """Every artifact, by name. In a folder each was verified by sha256; elsewhere by what its store lists."""
        return self._kind.artifacts()

    def check(self, name: str, deep: bool = False) -> Artifact:
        """The artifact of that name, verified; `problem` says when it is missing or damaged.

        deep: read every byte also where the store is asked over a network.
        """
        return self._kind.check(name, deep)

    def path(self, name: str, fingerprint: str) -> Path:
        """The folder with the files of that artifact, every byte verified just now; brought here first from elsewhere.

        Raises StoreError when it is missing, damaged or has another fingerprint.
        """
        return self._kind.path(name, fingerprint)

    def manifest(self, name: str) -> Manifest:
        """What is written down about that artifact; nothing is verified. Raises StoreError when there is none."""
        return self._kind.manifest(name)
