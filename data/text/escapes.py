r"""Escape a document to a single line, and select held-out documents.

For a lossless single line, backslash, newline and carriage return are written as `\\`, `\n` and `\r`.
"""

import hashlib
import math
import re
from collections.abc import Iterator

from data.text.document_batch import BETWEEN, Texts
from data.text.long_documents import Text, rewrite

ESCAPE = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
PLAIN = {written: character for character, written in ESCAPE.items()}
WHOLE = re.compile(rb"(?:[^\\]++|\\.)*+", re.DOTALL)


def escape(text: str) -> str:
    """Return `text` escaped to a single line."""
    return re.sub(r"[\\\n\r]", lambda found: ESCAPE[found[0]], text)


def escape_all(texts: Texts) -> Iterator[bytes]:
    """Yield blocks of escaped lines with newlines: `escape` for many texts, at the speed of `bytes.replace`."""
    for lines in texts.joined_blocks():
        for character, written in ESCAPE.items():
            lines = lines.replace(character.encode(), written.encode())
        yield lines.replace(BETWEEN, b"\n")


def unescape(line: str) -> str:
    """Return the original text of a line written by `escape`. Raises ValueError for an invalid escape."""
    if "\\" not in line:
        return line

    def plain(found: re.Match[str]) -> str:
        if found[0] not in PLAIN:
            raise ValueError(f"{found[0]!r} is not an escape that Slipway writes")
        return PLAIN[found[0]]

    return re.sub(r"\\.?", plain, line, flags=re.DOTALL)


def unescape_giant(line: bytearray) -> None:
    """Unescape a giant line in place, as `unescape` does."""
    rewrite(line, 0, len(line), WHOLE, lambda piece: unescape(piece.decode()).encode())


def held_out(texts: Texts | list[bytes], ratio: float, seed: int) -> bytes:
    """Return 1 for each held-out document, else 0, based on text and seed, independent of the document's position."""
    keyed = hashlib.blake2b(digest_size=8, key=str(seed).encode())
    limit = math.ceil(ratio * 2**64).to_bytes(8, "big")

    def is_held_out(text: Text) -> bool:
        one = keyed.copy()
        one.update(text)
        return one.digest() < limit

    return bytes(map(is_held_out, texts[:]))
