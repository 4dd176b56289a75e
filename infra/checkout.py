"""Root folder of the running checkout, which is also pushed to pods, and the stamp of the running code."""

import functools
import hashlib
import os
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("infra", "store", "serve", "trainer", "data", "flows", "scripts", "packs")
LOOK_EVERY_S = 15.0


@functools.cache
def stamp() -> str:
    """Return the stamp of the checkout at this process's first call."""
    return hash_checkout()


def hash_checkout() -> str:
    """Return the first 12 hexadecimal digits of a hash over all Python files of the product. Raises OSError."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        walked = os.walk(ROOT / folder)
        for path in sorted(f"{above}/{name}" for above, _, names in walked for name in names if name.endswith(".py")):
            with open(path, "rb") as file:
                digest.update(f"{path.removeprefix(str(ROOT))}\0".encode() + file.read() + b"\0")
    return digest.hexdigest()[:12]


class CodeWatch:
    """Detector of differences between the checkout's code and the running code.

    A change counts after two equal looks in a row, since a checkout may be half-written.
    """

    def __init__(self) -> None:
        self._seen, self._looked_at, self._other = stamp(), time.monotonic(), ""

    def changed_stamp(self) -> str:
        """Return the stamp of the changed code; "" without a change, or while the code still changes."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            before = self._seen
            try:
                self._seen = hash_checkout()
            except OSError:  # a file vanished meanwhile
                self._seen = ""
            self._other = self._seen if self._seen == before != stamp() else ""
            self._looked_at = now
        return self._other
