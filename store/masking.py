"""The masking of secrets in data that leaves the pod; the length is preserved so that offsets in a log stay valid."""

import base64
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

SHORTEST = 8  # minimum length for encoded spellings, since short encodings match unrelated text


class Mask:
    """A filter that masks secret values, also in hex, base64 and URL encoding."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if secret for form in encodings(secret)}
        self.longest = max(map(len, forms), default=0)
        self.beginnings = {form[:1] for form in forms}
        # Longest first, since a spelling may contain a shorter spelling.
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self.pattern = re.compile(b"|".join(map(re.escape, ordered))) if forms else None
        self.forms = tuple(ordered)

    def __call__(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same number of bytes with secrets masked, including secrets split across pieces."""
        if self.pattern is None:
            yield from pieces
            return
        held = b""  # masked, except for a value that may start at the end
        for piece in pieces:
            held = self._mask(held + piece)
            ready = max(0, len(held) - self.longest + 1)
            yield held[:ready]
            held = held[ready:]
        yield held

    def mask_part(self, pieces: Iterable[bytes], lead: int) -> Iterator[bytes]:
        """Yield a masked part of a file; consecutive parts add up to the masked file.

        lead: number of context bytes in front of the part, at least `longest` unless the part starts the file; the
        context reveals a secret across the boundary. A possible beginning of a secret at the end is left for the next
        part.
        """
        if self.pattern is None:
            lead_left = lead
            for piece in pieces:
                yield piece[lead_left:]
                lead_left = max(0, lead_left - len(piece))
            return
        held, left = b"", lead
        for piece in self(pieces):
            held += piece
            dropped, ready = min(left, len(held)), max(0, len(held) - self.longest + 1)
            if ready > dropped:
                yield held[dropped:ready]
            left, held = left - min(dropped, ready), held[ready:]
        yield held[left : len(held) - self.partial_secret_len(held)]

    def partial_secret_len(self, text: bytes) -> int:
        """Return the length of the longest suffix of `text` that may be the beginning of a secret."""
        for length in range(min(len(text), self.longest - 1), 0, -1):
            end = text[-length:]
            if end[:1] in self.beginnings and any(len(one) > length and one.startswith(end) for one in self.forms):
                return length
        return 0

    def _mask(self, text: bytes) -> bytes:
        assert self.pattern is not None
        return self.pattern.sub(lambda found: b"*" * len(found[0]), text)


def encodings(secret: str) -> set[bytes]:
    """Return the spellings of a secret: plain, URL-encoded, hex and base64.

    For base64, only the characters independent of adjacent bytes are included.
    """
    raw = secret.encode()
    found = {raw}
    if len(raw) >= SHORTEST:
        found |= {quote(secret, safe="").encode(), raw.hex().encode(), raw.hex().upper().encode()}
        for lead in range(3):
            code = base64.b64encode(b"\0" * lead + raw)
            code = code[4 if lead else 0 : -4 if (lead + len(raw)) % 3 else None]
            found |= {code, code.replace(b"+", b"-").replace(b"/", b"_")}
    return {form for form in found if form}
