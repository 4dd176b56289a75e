"""Simulated time: UTC seconds that pass `speed` times faster than ours, and that can be moved forward."""

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone


@dataclass
class Clock:
    """A clock that begins at the true time, so that a far-off date in an order is far off here as well."""

    speed: float = 1.0
    _began_at: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _moved_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        with self._lock:
            return self._began_at + (time.monotonic() - self._began) * self.speed + self._moved_s

    def move(self, seconds: float) -> None:
        """Advance the simulated time at once. Raises ValueError for time that would run backwards."""
        if not 0 <= seconds < 1e9:
            raise ValueError(f"the clock cannot be moved by {seconds} s")
        with self._lock:
            self._moved_s += seconds


def iso(at: float | None) -> str | None:
    """Return a time as RFC 3339, to the microsecond, in UTC."""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_iso(text: str) -> float:
    """Return the time of `text`. Raises ValueError when it is no date with a time zone."""
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()
