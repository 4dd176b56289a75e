"""Publish with a file size limit of a thousand bytes."""

import resource
import sys

from store.artifacts.artifacts import Store
from store.manifest import StoreError

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as on a full disk: a write fails half-way
try:
    Store(sys.argv[1]).publish(sys.argv[2], "text", "f2", {})
except StoreError as error:
    print(error)
