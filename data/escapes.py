"""A document as one line, and which documents are held out.

So that a document is one line and nothing of it is lost, backslash, newline and carriage return are written as
`\\\\`, `\\n` and `\\r`.
"""

import hashlib
import re

ESCAPE = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
PLAIN = {written: character for character, written in ESCAPE.items()}
BETWEEN = b"\xff"  # never part of UTF-8
GIANT = 4 << 20


def escape(text: str) -> str:
    """`text` as one line."""
    return re.sub(r"[\\\n\r]", lambda found: ESCAPE[found[0]], text)


def escape_all(texts: list[bytes]) -> bytes | bytearray:
    """Texts in UTF-8, each as one line with its newline: `escape` for many at once, at the speed of `bytes.replace`."""
    if sum(map(len, texts)) <= GIANT:
        return _escape(BETWEEN.join([*texts, b""]))
    lines = bytearray()  # slice by slice, so that there are not several copies of a giant
    for text in texts:
        for start in range(0, len(text), GIANT):
            lines += _escape(text[start : start + GIANT])
        lines += b"\n"
    return lines


def _escape(lines: bytes) -> bytes:
    for character, written in ESCAPE.items():
        lines = lines.replace(character.encode(), written.encode())
    return lines.replace(BETWEEN, b"\n")


def unescape(line: str) -> str:
    """The text that `escape` made `line` of. Raises ValueError for a line that it cannot have made."""
    if "\\" not in line:
        return line

    def plain(found: re.Match[str]) -> str:
        if found[0] not in PLAIN:
            raise ValueError(f"{found[0]!r} is no escape of ours")
        return PLAIN[found[0]]

    return re.sub(r"\\.?", plain, line, flags=re.DOTALL)


def in_val(text: bytes, ratio: float, seed: int) -> bool:
    """Whether a document (UTF-8) is held out: a matter of its words and the seed, not of its place."""
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") < ratio * 2**64
