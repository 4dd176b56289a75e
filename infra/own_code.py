"""The stamp of the code that a process runs: what the files of its checkout held when it first asked."""

import functools
import hashlib

from infra.checkout import ROOT

PRODUCT = ("infra", "store", "serve", "trainer", "data", "flows", "ui", "scripts")


@functools.cache
def stamp() -> str:
    """Return 12 hexadecimal digits of all Python files of the product. They are read once per process."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
