"""Names of sources in the store, and fingerprints of the contents of sources.

A source is given as typed: `pydocs`, `fineweb`, a path, a data set, or several of these with weights.
"""

import hashlib
import platform
from pathlib import Path

from data import references
from data.config import filled_files
from data.references import HUB
from store import extensions
from trainer.fingerprints import digest


def located(source: str) -> str:
    """Return a path as an absolute path on this machine; a data set of the hub unchanged."""
    return source if source.startswith(HUB) else str(Path(source).expanduser().absolute())


def slug_of(source: str) -> str:
    """Return the name of a source of conversations or problems in the store.

    The name is the last part of a path without suffixes, or the name of a data set.
    """
    stem = Path(references.parse(source).place).name
    stem = stem if source.startswith(HUB) else stem.split(".")[0]
    plain = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in stem)
    return plain.strip(".-")[:60] or "talk"


def own_sources(source: str) -> list[str]:
    """Return the parts of a source that name extensions known to this process."""
    parts = [one for one, _ in references.parse_mixture(source)] or [source]
    return [one for one in parts if extensions.used(one)]


def source_slug(source: str) -> str:
    """Return the name of a source under `datasets/`: `pydocs`, or the last part of a path before any wildcard."""
    if source in ("pydocs", "fineweb") or extensions.used(source):
        return source
    if mixture := references.parse_mixture(source):
        return "-".join(source_slug(one) for one, _ in mixture)[:100]
    reference = references.parse(source)
    if reference.is_hub:
        return reference.place.replace("/", "-").encode("ascii", "ignore").decode()[:100].strip(".-") or "hub"
    plain = [part for part in Path(reference.place).parts if not any(letter in part for letter in "*?[")] or ["local"]
    stem = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in Path(plain[-1]).stem)
    return stem.strip(".-")[:100] or "local"


def source_fingerprint(source: str) -> str:
    """Return the current fingerprint of a source: the Python version for pydocs, the content for files.

    The fingerprint is "" for fineweb and for data sets of the hub. A file over 64 MiB counts by size and modification
    time, because hashing the file would delay every plan. Raises ConfigError if no file exists or a file is empty.
    """
    if source == "fineweb":
        return ""
    if source == "pydocs":
        return f"python {platform.python_version()}"
    if own := extensions.used(source):
        return own.label
    if mixture := references.parse_mixture(source):
        return digest([source_fingerprint(one) for one, _ in mixture])
    reference = references.parse(source)
    if reference.is_hub:
        return ""
    parts = []
    for file in filled_files(reference.place):
        stat = file.stat()
        large = stat.st_size > 64 << 20
        content = [stat.st_size, stat.st_mtime_ns] if large else hashlib.sha256(file.read_bytes()).hexdigest()
        parts.append([file.name, content])
    return digest(parts)
