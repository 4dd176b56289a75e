"""Rate limits of a vendor's API, counted over all processes of an installation.

`wait_s` counts a request, or returns the time to wait before the request. A locked file beside the journal holds the
counts, with one ring of buckets per window; without a file, the counts cover this process alone.
"""

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RateWindow:
    """A limit of `most` requests in any `seconds`, counted in buckets of `seconds / buckets`.

    The sum covers one bucket more than `buckets`, since the current bucket is not over: with twelve buckets, fifty
    requests at the end of the first bucket and fifty at the start of the thirteenth lie 55 s apart.
    """

    seconds: float
    most: int
    buckets: int

    @property
    def bucket_s(self) -> float:
        return self.seconds / self.buckets

    @property
    def counted(self) -> int:
        return self.buckets + 1


# RunPod's answers name 60 requests a minute, 3,000 an hour and 50,000 a day as an example of the vendor's policy; the
# other vendors name no limits. A sixth is left for other clients of the same account.
WINDOWS = (RateWindow(60.0, 50, 12), RateWindow(3600.0, 2500, 60), RateWindow(86400.0, 41_000, 48))
_BUCKET = struct.Struct("<QQ")  # number of the bucket since the epoch, requests in it


@dataclass
class Pace:
    """The rate limit of a vendor. `path`: a file shared by all processes; None = this process alone."""

    path: Path | None = None
    clock_scale: float = 1.0
    windows: tuple[RateWindow, ...] = WINDOWS
    clock: Callable[[], float] = time.time
    _alone: bytearray = field(default_factory=bytearray)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def for_journal(state_file: Path, vendor: str, clock_scale: float) -> "Pace":
        """Return the rate limit shared by all processes with this journal."""
        return Pace(state_file.with_name(f"{state_file.name}-pace-{vendor}"), clock_scale)

    @staticmethod
    def per_minute(most: int, clock_scale: float = 1.0) -> "Pace":
        """Return a limit of requests in a minute, counted in this process alone."""
        return Pace(None, clock_scale, (RateWindow(60.0, most, 12),))

    @property
    def description(self) -> str:
        """Return the limits, for a message."""
        parts = [f"{window.most} in {window.seconds / 60:.0f} min" for window in self.windows]
        return f"the requests of all processes on this machine reach the rate limit ({', '.join(parts)})"

    def wait_s(self, changes: bool = False) -> float:
        """Return 0 and count the request if the request may be sent; else return the seconds before asking again.

        `changes`: the request rents or ends a pod. Only the shortest window delays such a request, so that a day of
        polling never prevents the end of a machine.
        """
        binding = self.windows[:1] if changes else self.windows
        with self._lock:
            try:
                return self._count(self._alone, binding) if self.path is None else self._count_in(self.path, binding)
            except OSError:  # state folder not writable: each process counts only the requests of this process
                return self._count(self._alone, binding)

    def _count_in(self, path: Path, binding: tuple[RateWindow, ...]) -> float:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            counts = bytearray(os.pread(file, self._size, 0))
            wait_s = self._count(counts, binding)
            if not wait_s:
                os.pwrite(file, counts, 0)
            return wait_s
        finally:
            os.close(file)

    @property
    def _size(self) -> int:
        return sum(window.counted for window in self.windows) * _BUCKET.size

    def _count(self, counts: bytearray, binding: tuple[RateWindow, ...]) -> float:
        if len(counts) != self._size:  # a new file, or a file for other windows
            counts[:] = bytes(self._size)
        now_s, start, places = self.clock() * self.clock_scale, 0, []
        for window in self.windows:
            number = int(now_s / window.bucket_s)
            spans = range(start, start + window.counted * _BUCKET.size, _BUCKET.size)
            ring = [_BUCKET.unpack_from(counts, at) for at in spans]
            # A bucket from the future was written before the clock was set back; such counts are dropped.
            recent = {at: sent for at, sent in ring if number - window.counted < at <= number}
            if window in binding and sum(recent.values()) >= window.most:
                oldest = min(at for at, sent in recent.items() if sent)
                return max(0.01, (oldest + window.counted) * window.bucket_s - now_s) / self.clock_scale
            places.append((start + number % window.counted * _BUCKET.size, number, recent.get(number, 0) + 1))
            start += window.counted * _BUCKET.size
        for at, number, sent in places:
            _BUCKET.pack_into(counts, at, number, sent)
        return 0.0
