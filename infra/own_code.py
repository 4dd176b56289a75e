"""The stamp of the code that a process runs, and the notice that its checkout holds other code by now."""

import functools
import hashlib
import os
import time

from infra.checkout import ROOT

PRODUCT = ("infra", "store", "serve", "trainer", "data", "flows", "scripts", "packs")
LOOK_EVERY_S = 15.0


@functools.cache
def stamp() -> str:
    """Return the stamp of the checkout as it was when this process first asked."""
    return of_checkout()


def of_checkout() -> str:
    """Return 12 hexadecimal digits of all Python files of the product, as they are now. Raises OSError."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        walked = os.walk(ROOT / folder)
        for path in sorted(f"{above}/{name}" for above, _, names in walked for name in names if name.endswith(".py")):
            with open(path, "rb") as file:
                digest.update(f"{path.removeprefix(str(ROOT))}\0".encode() + file.read() + b"\0")
    return digest.hexdigest()[:12]


class CodeWatch:
    """Notice when the checkout holds other code than this process runs.

    Code that two looks in a row find the same counts: a checkout that is just being written is not whole.
    """

    def __init__(self) -> None:
        self._seen, self._looked_at, self._other = stamp(), time.monotonic(), ""

    def other(self) -> str:
        """Return the stamp of the other code; "" while there is none, or while it still changes."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            before = self._seen
            try:
                self._seen = of_checkout()
            except OSError:  # a file that vanished meanwhile
                self._seen = ""
            self._other = self._seen if self._seen == before != stamp() else ""
            self._looked_at = now
        return self._other
