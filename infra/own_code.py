"""The stamp of the code that a process runs: what the files of its checkout held when it first asked."""

import functools
import hashlib
import os

from infra.checkout import ROOT

PRODUCT = ("infra", "store", "serve", "trainer", "data", "flows", "scripts", "packs")


@functools.cache
def stamp() -> str:
    """Return 12 hexadecimal digits of all Python files of the product. They are read once per process."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        walked = os.walk(ROOT / folder)
        for path in sorted(f"{above}/{name}" for above, _, names in walked for name in names if name.endswith(".py")):
            with open(path, "rb") as file:
                digest.update(f"{path.removeprefix(str(ROOT))}\0".encode() + file.read() + b"\0")
    return digest.hexdigest()[:12]
