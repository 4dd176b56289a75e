"""A line that moves on the terminal while something is waited for, so that nobody takes silence for the end.

In: what is waited for, in words. Out: on stderr, after a second, those words and how long it has been; they are
taken away again when the wait is over. Where stderr is no terminal nothing is written.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from store.word_wrap import width_of

AFTER_S = 1.0
EVERY_S = 0.25
MARKS = "|/-\\"  # every terminal and every encoding has them

_turn = threading.RLock()
_shown = 0  # letters of the line that stands there now


@contextlib.contextmanager
def waiting(what: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Show `what` while the body takes longer than that. Who prints meanwhile calls `clear` before."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_move, args=(what, time.monotonic(), after_s, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        clear()


def clear() -> None:
    """Clear the line; it comes back while its subject goes on."""
    global _shown
    with _turn:
        if _shown:
            sys.stderr.write("\r" + " " * _shown + "\r")
            sys.stderr.flush()
            _shown = 0


def line_of(what: str, elapsed_s: float, width: int) -> str:
    """Return the line after so many seconds, which fits into `width` columns."""
    mark, after = MARKS[int(elapsed_s / EVERY_S) % len(MARKS)], f", {elapsed_s:.0f} s"
    return f"{mark} {what[: max(0, width - len(after) - 3)]}{after}"[: max(0, width - 1)]


def _move(what: str, began: float, after_s: float, over: threading.Event) -> None:
    global _shown
    wait_s = after_s
    while not over.wait(wait_s):
        wait_s = EVERY_S
        line = line_of(what, time.monotonic() - began, width_of(sys.stderr))
        with _turn, contextlib.suppress(OSError, ValueError):  # the terminal is gone or closed: nobody sees the line
            sys.stderr.write("\r" + line.ljust(_shown))
            sys.stderr.flush()
            _shown = max(_shown, len(line))
