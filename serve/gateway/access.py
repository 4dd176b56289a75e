"""One line of JSON for each request, without prompt and answer. Two files of a bounded size: PATH and PATH.1."""

import os
import time
from pathlib import Path

import msgspec

from serve.gateway.visit import Visit

MOST_BYTES = 64 << 20


class AccessLog:
    """Appends to `path`; `flush` writes all lines since the one before, at once."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self._file = -1
        self._size = 0
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []

    @property
    def waiting(self) -> int:
        """Lines that are not written yet."""
        return len(self._lines)

    def add(self, visit: Visit) -> None:
        self._lines.append(self._encode(_fields(visit)) + b"\n")

    def flush(self) -> None:
        """Raises OSError when the lines cannot be written; they are lost then, and the next ones are tried anew."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        if self._file < 0:
            self._open()
        self._size += os.write(self._file, b"".join(lines))
        if self._size >= self.most_bytes:
            self._shut()
            os.replace(self.path, f"{self.path}.1")

    def close(self) -> None:
        """Raises OSError, as `flush` does."""
        try:
            self.flush()
        finally:
            self._shut()

    def _shut(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size


def _fields(visit: Visit) -> dict[str, object]:
    return {
        "at": round(time.time(), 3),
        "id": visit.request_id,
        "key": visit.key,
        "route": visit.route,
        "status": visit.status,
        "replica": visit.replica,
        "tries": visit.tries,
        "streams": visit.streams,
        "bytes_in": visit.bytes_in,
        "bytes_out": visit.bytes_out,
        "queue_s": _rounded(visit.queue_s),
        "first_byte_s": _rounded(visit.first_byte_s),
        "total_s": _rounded(visit.total_s),
        "note": "; ".join([*visit.failures, visit.note] if visit.note else visit.failures),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
