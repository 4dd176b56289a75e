"""The choice of a storage backend by its URI: a folder, a bucket, a repository of the hub."""

import re

from store import credentials
from store.backends.backend import Backend
from store.backends.folder import Folder
from store.manifest import NoStore
from store.patience import clean


def open_place(uri: str) -> Backend:
    """Return the backend for a URI, by its scheme, touching nothing. Raises NoStore when no backend speaks to it.

    What else fsspec speaks is refused here, before anything runs: its clients are in no environment of ours, nor on a
    pod.
    """
    kind = credentials.kind(uri)
    if kind in ("", "file"):
        return Folder(uri)
    if kind == "s3":
        from store.backends.s3 import Bucket

        return Bucket(uri)
    if kind == "gs":
        from store.backends.gs import GoogleBucket

        return GoogleBucket(uri)
    if kind == "hf":
        from store.backends.hub import Repository

        return Repository(uri)
    if kind == "memory":
        from store.backends.fsspec import Other

        return Other(uri)
    said = re.sub("//[^/]*@", "//", clean(uri))
    raise NoStore(f"store {said}: {kind}:// is not supported; a store is a folder, hf://user/repo, "
                  "s3://bucket/folder or gs://bucket/folder")  # fmt: skip
