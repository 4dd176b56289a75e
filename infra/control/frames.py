"""The protocol between both ends of a command on a control host: frames with a kind and a length.

From the laptop: BEGIN once (JSON), INPUT and its END, SIGNAL, SIZE of the terminal, GONE (nobody reads that stream any
more), and PING, by which the host knows that somebody is there. From the host: OUT and ERR, COPY (of the journal), and
OVER (JSON) at the end.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

BEGIN, INPUT, END, SIGNAL, SIZE, GONE, PING = b"B", b"I", b"Z", b"S", b"W", b"G", b"P"
OUT, ERR, COPY, OVER = b"O", b"E", b"C", b"X"
PING_S = 2.0
CHUNK = 1 << 15
MOST = 1 << 26  # bytes of one piece
_HEAD = struct.Struct("!cI")


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


def told(kind: bytes, about: Any) -> bytes:
    """Return a frame that holds JSON."""
    return frame(kind, json.dumps(about).encode())


class Reader:
    """The frames in bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield complete frames: kind and content. Raises ValueError for bytes that no end of ours has sent."""
        self._held += piece
        while len(self._held) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._held)
            if size > MOST or kind not in b"BIZSWGPOECX":
                raise ValueError(f"{bytes(self._held[:200])!r}")
            if len(self._held) < _HEAD.size + size:
                return
            content = bytes(self._held[_HEAD.size : _HEAD.size + size])
            del self._held[: _HEAD.size + size]
            yield kind, content
