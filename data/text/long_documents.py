"""Process documents too large to hold in memory twice, piece by piece and in place.

The input is a text or a line of more than GIANT bytes, a bytearray for in-place changes. The output is the same
bytearray, or an iterator of pieces.
"""

import codecs
import json
import mmap
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store import untrusted_input

GIANT = 4 << 20
PIECE = 64 << 10
LET_GO_S = 0.01
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
PAIR = rb"\\u[dD][89abAB]..(?=.{6})(?:\\u[dD][c-fC-F]..)?"  # or half of a pair
ESCAPES = re.compile(rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])....|" + PAIR + rb")*+", re.DOTALL)
"""Complete characters and JSON escapes; both escapes of a surrogate pair match together."""

Text = bytes | bytearray | memoryview


def characters(text: Text, errors: str = "strict") -> Iterator[str]:
    """Yield `text` decoded from UTF-8, in pieces. Raises UnicodeDecodeError."""
    decoder, view = codecs.getincrementaldecoder("utf-8")(errors), memoryview(text)
    for start in range(0, len(view), PIECE):
        yield decoder.decode(bytes(view[start : start + PIECE]), start + PIECE >= len(view))


def rewrite(data: bytearray, start: int, end: int, whole: re.Pattern[bytes], plain: Callable[[bytes], bytes]) -> None:
    """Replace `data` with the result of `plain` on data[start:end], which must not be longer.

    `plain` receives pieces of about PIECE bytes, each matched by `whole`; without a match, pieces end between
    characters.
    """
    at = 0
    while start < end:
        stop = min(start + PIECE, end)
        while stop < end and data[stop] & 0xC0 == 0x80:  # inside a UTF-8 character
            stop += 1
        found = whole.match(data, start, stop) if stop < end else None
        stop = found.end() if found and found.end() > start else stop
        piece = plain(bytes(data[start:stop]))
        data[at : at + len(piece)] = piece
        at, start = at + len(piece), stop
    del data[at:]


def take_text(line: bytearray) -> Any:
    """Return the result of `json.loads` for `line`, but with a giant "text" value as `line` itself.

    In this case `line` is overwritten with the text. Raises ValueError.
    """
    name, last = f"giant {os.urandom(16).hex()} ", 0
    rest = bytearray()  # the line with placeholders for giant strings
    giants: dict[str, tuple[int, int]] = {}
    for found in STRING.finditer(line):
        if found.end() - found.start() > GIANT:
            key = f"{name}{len(giants)}"
            rest += line[last : found.start()] + json.dumps(key).encode()
            giants[key] = found.span()
            last = found.end()
    rest += line[last:]
    row = untrusted_input.row(rest)
    items = row.items() if giants and isinstance(row, dict) else ()
    keys = [key for key, value in items if isinstance(value, str) and value in giants]
    if len(keys) != len(giants):  # a giant string is a key, or nested
        return untrusted_input.row(line)
    for key in keys:
        start, end = giants[row[key]]
        if key != "text":
            row[key] = json.loads(line[start:end])
    if "text" in keys:
        start, end = giants[row["text"]]
        rewrite(line, start + 1, end - 1, ESCAPES, lambda piece: _plain(json.loads(b'"%b"' % piece)))
        row["text"] = line
    return row


@contextmanager
def mapped(text: bytearray, folder: Path) -> Iterator[mmap.mmap]:
    """Move the bytes of `text` to an unnamed file in `folder`, and yield a memory map of the file.

    For consumers that copy all bytes and then need much memory, without a signal between the two phases: a thread
    releases the pages of the map every LET_GO_S seconds; released pages can be read again.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(text)
        file.flush()
        text.clear()
        pages, ended = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), threading.Event()

        def let_go() -> None:
            while not ended.wait(LET_GO_S):
                pages.madvise(mmap.MADV_DONTNEED)

        letting_go = threading.Thread(target=let_go)
        letting_go.start()
        try:
            yield pages
        finally:
            ended.set()
            letting_go.join()


def json_line(text: Text, columns: dict[str, Any]) -> Iterator[bytes]:
    """Yield the JSON object with this text and these columns, as a line."""
    yield b'{"text": "'
    for some in characters(text):
        yield json.dumps(some, ensure_ascii=False)[1:-1].encode()
    rest = json.dumps(columns, ensure_ascii=False, default=str)[1:]
    yield f'"{", " if columns else ""}{rest}\n'.encode("utf-8", "replace")


def _plain(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # an unpaired surrogate has no UTF-8 form
