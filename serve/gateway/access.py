"""Access log: a line of JSON per request, without prompt and answer, in two files of bounded size."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from serve.gateway.request_log import RequestRecord

MOST_BYTES = 64 << 20


class AccessLog:
    """Access log that appends to `path`, and rotates to `path.1` after `most_bytes` bytes."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self._file = -1
        self._size = 0
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, visits: Iterable[RequestRecord]) -> None:
        """Append a line for each request.

        Raises OSError when the lines cannot be written. These lines are lost; the next call tries again.
        """
        at = int(time.time() * 1e3) / 1e3
        lines = self._encode([_line(visit, at) for visit in visits])
        if self._file < 0:
            self._open()
        self._size += os.write(self._file, lines)
        if self._size >= self.most_bytes:
            self.close()
            os.replace(self.path, f"{self.path}.1")

    def close(self) -> None:
        """Close the file. Raises OSError."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size


class _Line(msgspec.Struct):
    """Keys of a log line, in order."""

    at: float  # Unix time
    id: str
    key: str
    route: str
    status: int
    replica: str
    tries: int
    streams: bool
    bytes_in: int
    bytes_out: int
    queue_s: float | None
    first_byte_s: float | None
    total_s: float
    note: str


def _line(visit: RequestRecord, at: float) -> _Line:
    queue_s, first_byte_s = visit.queue_s, visit.first_byte_s
    return _Line(
        at,
        visit.request_id.decode(),
        visit.key,
        visit.route,
        visit.status,
        visit.replica,
        visit.tries,
        visit.streams,
        visit.bytes_in,
        visit.bytes_out,
        None if queue_s is None else int(queue_s * 1e4) / 1e4,  # `round` takes as long as the rest of the line
        None if first_byte_s is None else int(first_byte_s * 1e4) / 1e4,
        int(visit.total_s * 1e4) / 1e4,
        "; ".join([*visit.failures, visit.note] if visit.note else visit.failures),
    )
