"""The progress line on a terminal during a wait, so that users do not mistake silence for a hang.

`waiting` takes a description and shows the description with the elapsed time on stderr after one second; the line is
cleared after the wait. Without a terminal on stderr, no output is written.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from store.word_wrap import width_of

AFTER_S = 1.0
EVERY_S = 0.25
MARKS = "|/-\\"  # supported by every terminal and encoding

_turn = threading.RLock()
_shown = 0  # characters of the line on screen


@contextlib.contextmanager
def waiting(what: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Show `what` while the body takes longer than `after_s` seconds. Call `clear` before printing in the body."""
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
    """Clear the line; the line returns at the next update."""
    global _shown
    with _turn:
        if _shown:
            sys.stderr.write("\r" + " " * _shown + "\r")
            sys.stderr.flush()
            _shown = 0


def line_of(what: str, elapsed_s: float, width: int) -> str:
    """Return the progress line after `elapsed_s` seconds, cut to `width` columns."""
    mark, after = MARKS[int(elapsed_s / EVERY_S) % len(MARKS)], f", {elapsed_s:.0f} s"
    return f"{mark} {what[: max(0, width - len(after) - 3)]}{after}"[: max(0, width - 1)]


def _move(what: str, began: float, after_s: float, over: threading.Event) -> None:
    global _shown
    wait_s = after_s
    while not over.wait(wait_s):
        wait_s = EVERY_S
        line = line_of(what, time.monotonic() - began, width_of(sys.stderr))
        with _turn, contextlib.suppress(OSError, ValueError):  # the terminal is gone or closed
            sys.stderr.write("\r" + line.ljust(_shown))
            sys.stderr.flush()
            _shown = max(_shown, len(line))
