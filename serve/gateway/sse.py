"""The errors of a streamed answer. An engine that dies mid-stream still answers 200 and may end in order.

vLLM then sends `data: {"error": ...}` and `data: [DONE]`; one whose front process dies as well just ends. Streams of
`/v1/responses` have named events, and end with one of a few instead. Pure.
"""

import re

import msgspec

MOST_LINE_BYTES = 256 << 10  # bytes of an incomplete line; the beginning of a longer one is not read
DONE = b"data: [DONE]"
LAST = re.compile(rb"^event: response\.(completed|incomplete|failed|cancelled)\r?$", re.MULTILINE)


class StreamWatch:
    """A watch over a stream: chunks in, in order; it tells whether there was an error, and whether it was whole."""

    __slots__ = ("_rest", "_ending", "_is_last", "error_code")

    def __init__(self) -> None:
        self._rest = b""
        self._ending = b""
        self._is_last = False  # an event was that says so
        self.error_code: int | None = None  # status of the first error; 500 when it names none

    def feed(self, chunk: bytes) -> None:
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._rest = (self._rest + chunk)[-MOST_LINE_BYTES:]
            return
        lines = self._rest + chunk[:cut] if self._rest else chunk[:cut]
        self._rest = chunk[cut:][-MOST_LINE_BYTES:]
        self._ending = lines[-len(DONE) - 8 :]
        if b"event: response." in lines and LAST.search(lines):
            self._is_last = True
        if b'"error"' in lines and self.error_code is None:
            self._look(lines)

    @property
    def is_whole(self) -> bool:
        """Return whether the last line was [DONE], or an event was the last one."""
        return self._is_last or (self._ending + self._rest).rstrip().endswith(DONE)

    def _look(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and b'"error"' in line:
                try:
                    said = msgspec.json.decode(line[5:])
                except (msgspec.DecodeError, RecursionError, ValueError):
                    continue  # the client may understand it, so it is passed on
                if isinstance(said, dict) and said.get("error"):
                    error = said["error"]
                    code = error.get("code") if isinstance(error, dict) else None
                    self.error_code = code if isinstance(code, int) else 500
                    return
