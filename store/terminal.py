"""The lines on a terminal: the progress line during a wait, and messages wrapped to the width of the terminal.

`show_while` shows a description with the elapsed time on stderr after one second, and clears the line after the wait.
`wrap_text` breaks lines between words, never inside a command; a command longer than a line is left to the terminal,
whose soft wrapping does not affect copied text. A stream that is no terminal gets no progress line, and text unchanged.
"""

import codecs
import contextlib
import io
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import TextIO

AFTER_S = 1.0
EVERY_S = 0.25
MARKS = "|/-\\"  # supported by every terminal and encoding

# Signs of our tables and their ASCII form; any other character that an encoding lacks becomes `?`.
ASCII = dict(zip("·▸✓✗▁▂▃▄▅▆▇█±…–—≥≤×", ".>+x_.-:=+*#~.--><x", strict=True))

_turn = threading.RLock()
_shown = 0  # characters of the line on screen
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?<![\w/])(?:\./)?inv [a-z][\w.-]*(?: [^\s;,]+)?(?: (?=\S*[-/_A-Z0-9<])[^\s;,]+)*"
)
_FIRST_COLUMN = re.compile(r"(\s*\S.*?\s{2,})\S")
_INDENT = re.compile(r"\s*(?:- )?")
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:s|min|h|d|[kMGT]?B|USD|%)\b)")
_HELD = "\x00"  # placeholder for a non-breaking space


def replace_unencodable() -> None:
    """Let stdout and stderr replace the characters that their encoding lacks; by default these end the command."""

    def ascii_form(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end

    codecs.register_error("slipway-ascii", ascii_form)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="slipway-ascii")


@contextlib.contextmanager
def show_while(what: str, after_s: float = AFTER_S) -> Iterator[None]:
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


def wrap_text(text: str, stream: TextIO) -> str:
    """Return `text` wrapped for `stream`; the next lines start at the indent, or in the second column, of the first."""
    return wrap_to(text, width_of(stream)) if stream.isatty() else text


def wrap_to(text: str, width: int) -> str:
    """Return `text` wrapped to `width` columns, like `wrap_text`."""
    return "\n".join(_wrapped(line, width) if len(line) > width else line for line in text.split("\n"))


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal behind `stream`, independent of other streams: `inv status | less`."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def _wrapped(line: str, width: int) -> str:
    column, indent = _FIRST_COLUMN.match(line), _INDENT.match(line)
    hang = column.end(1) if column and column.end(1) < width // 2 else indent.end() if indent else 0
    held = _UNIT.sub(_HELD, _COMMAND.sub(lambda found: found[0].replace(" ", _HELD), line[hang:]))
    wrapped = textwrap.wrap(
        held, width - hang, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return line[:hang] + ("\n" + " " * hang).join(wrapped).replace(_HELD, " ")
