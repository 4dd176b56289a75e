"""The choice of a storage backend by its URI: a folder, a bucket, a repository of the hub.

The client of a place is imported when a store there is opened.
"""

import re
from collections.abc import Mapping

from store import credentials, packs
from store.backends.backend import Backend
from store.manifest import NoStore
from store.patience import clean

BACKENDS: Mapping[str, str] = {
    "": "store.backends.folder:Folder",
    "file": "store.backends.folder:Folder",
    "s3": "store.backends.s3:Bucket",
    "gs": "store.backends.gs:GoogleBucket",
    "hf": "store.backends.hub:Repository",
    "memory": "store.backends.fsspec:Other",
}


def open_place(uri: str) -> Backend:
    """Return the backend for a URI, by its scheme, touching nothing. Raises NoStore when no backend speaks to it.

    What else fsspec speaks is refused here, before anything runs: its clients are in no environment of ours, nor on a
    pod.
    """
    kind = credentials.kind(uri)
    if kind in BACKENDS:
        found: Backend = packs.load(BACKENDS[kind])(uri)
        return found
    said = re.sub("//[^/]*@", "//", clean(uri))
    raise NoStore(f"store {said}: {kind}:// is not supported; a store is a folder, hf://user/repo, "
                  "s3://bucket/folder or gs://bucket/folder")  # fmt: skip
