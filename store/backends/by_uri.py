"""The choice of a storage backend by the scheme of a URI: folder, bucket or hub repository.

The client library of a backend is imported when a store with this scheme is opened.
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
