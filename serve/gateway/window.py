"""Rate of events over the last minute, kept in 61 numbers at any load."""

SECONDS = 60


class Window:
    """Event counts per second. Time never goes back: a late event counts as now."""

    __slots__ = ("_counts", "_second", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * SECONDS
        self._second = 0  # second in progress
        self._sum = 0

    def add(self, now: float) -> None:
        if int(now) > self._second:
            self._forget(now)
        self._counts[self._second % SECONDS] += 1
        self._sum += 1

    def per_second(self, now: float) -> float:
        """Return the mean rate over the last 60 s, the second in progress included."""
        self._forget(now)
        return self._sum / SECONDS

    def _forget(self, now: float) -> None:
        second = int(now)
        if second <= self._second:
            return
        for past in range(max(self._second + 1, second - SECONDS + 1), second + 1):
            self._sum -= self._counts[past % SECONDS]
            self._counts[past % SECONDS] = 0
        self._second = second
