"""What sources are called in the store, and by what it is known that they have changed.

In: a source as it was typed: `pydocs`, `fineweb`, a path, an address. Out: a name; a fingerprint.
"""

import hashlib
import platform
from pathlib import Path

from data.config import (
    source_files,
)
from trainer.fingerprints import digest


def slug_of(source: str) -> str:
    """Return what such conversations are called.

    It is the last part of a path without its suffixes, or a data set's own name.
    """
    stem = Path(source).name
    stem = stem if source.startswith("hf://") else stem.split(".")[0]
    plain = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in stem)
    return plain.strip(".-")[:60] or "talk"


def source_slug(source: str) -> str:
    """Return the name under `datasets/` for a source: `pydocs`, or what a path ends in before its wildcards."""
    if source in ("pydocs", "fineweb"):
        return source
    plain = [part for part in Path(source).parts if not any(letter in part for letter in "*?[")] or ["local"]
    stem = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in Path(plain[-1]).stem)
    return stem.strip(".-")[:100] or "local"


def source_fingerprint(source: str) -> str:
    """Return what the source holds now: for pydocs the Python that is read, for files their content.

    A file over 64 MiB counts by size and modification time, since hashing it would hold up every plan.
    Raises ConfigError when there is no file to read.
    """
    if source == "fineweb":
        return ""
    if source == "pydocs":
        return f"python {platform.python_version()}"
    parts = []
    for file in source_files(source):
        stat = file.stat()
        large = stat.st_size > 64 << 20
        content = [stat.st_size, stat.st_mtime_ns] if large else hashlib.sha256(file.read_bytes()).hexdigest()
        parts.append([file.name, content])
    return digest(parts)
