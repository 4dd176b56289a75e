"""Errors in a streamed answer. An engine that dies mid-stream has answered 200 and may end the stream in order.

vLLM then sends `data: {"error": ...}` and `data: [DONE]`; if the front process dies as well, the stream just ends.
Streams of `/v1/responses` have named events, and end with one of a few final events instead. Pure.
"""

import re

import msgspec

MOST_LINE_BYTES = 256 << 10  # bytes of an incomplete line; the beginning of a longer line is dropped
DONE = b"data: [DONE]"
LAST = re.compile(rb"^event: response\.(completed|incomplete|failed|cancelled)\r?$", re.MULTILINE)


class StreamWatch:
    """Watch over a stream: takes the chunks in order, and reports an error and completeness."""

    __slots__ = ("_rest", "_ending", "_is_last", "error_code")

    def __init__(self) -> None:
        self._rest = b""
        self._ending = b""
        self._is_last = False  # a final event was seen
        self.error_code: int | None = None  # status of the first error; 500 without a status

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
            self._scan(lines)

    @property
    def is_complete(self) -> bool:
        """Return whether the stream is complete: the last line was [DONE], or a final event was seen."""
        return self._is_last or (self._ending + self._rest).rstrip().endswith(DONE)

    def _scan(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and b'"error"' in line:
                try:
                    said = msgspec.json.decode(line[5:])
                except (msgspec.DecodeError, RecursionError, ValueError):
                    continue  # forwarded, since the client may understand the event
                if isinstance(said, dict) and said.get("error"):
                    error = said["error"]
                    code = error.get("code") if isinstance(error, dict) else None
                    self.error_code = code if isinstance(code, int) else 500
                    return
