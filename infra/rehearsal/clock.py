"""Simulated time: UTC seconds, `speed` times faster than real time, with jumps forward on request."""

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone


@dataclass
class Clock:
    """A clock that starts at the real time, so that a distant date in an order is equally distant in the simulation."""

    speed: float = 1.0
    _began_at: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _moved_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        with self._lock:
            return self._began_at + (time.monotonic() - self._began) * self.speed + self._moved_s

    def move(self, seconds: float) -> None:
        """Advance the simulated time at once. Raises ValueError for a negative or huge step."""
        if not 0 <= seconds < 1e9:
            raise ValueError(f"the clock cannot be moved by {seconds} s")
        with self._lock:
            self._moved_s += seconds


def iso(at: float | None) -> str | None:
    """Return a time as RFC 3339 in UTC with microseconds, or None for None."""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_iso(text: str) -> float:
    """Return the UTC seconds of an ISO 8601 text. Raises ValueError without a valid date and time zone."""
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()
