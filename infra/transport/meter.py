"""Traffic meter of a connection with an optional rate limit."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Meter:
    """Counters of a transfer: moved bytes, interruptions, and the transfer methods used."""

    bytes_per_s: float | None = None
    num_bytes: int = 0
    cuts: int = 0
    kept_bytes: int = 0
    """Bytes already on the receiving side, from an interrupted attempt or an older version."""
    ways: set[str] = field(default_factory=set)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _free_at: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def count(self, num_bytes: int) -> None:
        """Add `num_bytes` to the count and sleep as long as the rate limit requires."""
        with self._turn:
            self.num_bytes += num_bytes
            if self.bytes_per_s is None:
                return
            now = self.now()
            self._free_at = max(self._free_at, now) + num_bytes / self.bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0:
            self.sleep(wait_s)
