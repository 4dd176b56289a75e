"""Talk as wide as the terminal that shows it: lines end between words, and never within a command.

In: sentences. Out: the same with line ends for a terminal, as they are for anything else. A command that is longer than
a line is left to the terminal, which breaks what it shows but not what is copied from it.
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
_HELD = "\x00"  # stands for a space that ends no line


def fitted(text: str, stream: TextIO) -> str:
    """Return `text` for `stream`. What stands in columns keeps them."""
    if not stream.isatty():
        return text
    width = width_of(stream)
    return "\n".join(_lines(line, width) if len(line) > width else line for line in text.split("\n"))


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal behind this stream, whatever the others are: `inv status | less`."""
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
    )  # fmt: skip
    return line[:hang] + ("\n" + " " * hang).join(wrapped).replace(_HELD, " ")
