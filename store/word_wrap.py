"""The wrapping of messages to the width of the terminal: lines break between words, never inside a command.

The input is text; the result has line breaks for a terminal and is unchanged for other streams. A command longer than a
line is left to the terminal, whose soft wrapping does not affect copied text.
"""

import contextlib
import os
import re
import textwrap
from typing import TextIO

_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?<![\w/])(?:\./)?inv [a-z][\w.-]*(?: [^\s;,]+)?(?: (?=\S*[-/_A-Z0-9<])[^\s;,]+)*"
)
_FIRST_COLUMN = re.compile(r"(\S.*?\s{2,})\S")
_HELD = "\x00"  # placeholder for a non-breaking space


def fitted(text: str, stream: TextIO) -> str:
    """Return `text` wrapped for `stream`; continuation lines of two-column text start at the second column."""
    if not stream.isatty():
        return text
    width = width_of(stream)
    return "\n".join(_lines(line, width) if len(line) > width else line for line in text.split("\n"))


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal behind `stream`, independent of other streams: `inv status | less`."""
    with contextlib.suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def _lines(line: str, width: int) -> str:
    column = _FIRST_COLUMN.match(line)
    hang = column.end(1) if column and column.end(1) < width // 2 else 0
    held = _COMMAND.sub(lambda found: found[0].replace(" ", _HELD), line[hang:])
    wrapped = textwrap.wrap(
        held, width - hang, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return line[:hang] + ("\n" + " " * hang).join(wrapped).replace(_HELD, " ")
