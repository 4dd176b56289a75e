"""The wait before something that failed is tried again: the one rule of the control side, data and serving.

In: how often it has failed. Out: seconds. The agent has the same rule in `infra.agent.shortage`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

MOST_DOUBLINGS = 30  # beyond it every longest wait is reached, and a float would overflow at last


@dataclass(frozen=True)
class Backoff:
    """Waits that double up to a longest one, with jitter so that many who failed together do not come back together."""

    first_s: float
    longest_s: float
    certain: float = 0.5
    """The share of a wait that chance does not touch: 0 is full jitter, 1 is none."""

    def wait_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row, which are at least 1."""
        whole_s = min(self.longest_s, self.first_s * 2 ** min(failures - 1, MOST_DOUBLINGS))
        return random.uniform(self.certain * whole_s, whole_s)


@dataclass(frozen=True)
class Retries:
    """The policy for restarting what has failed: how often, and how soon. Pure, unless `backoff` is random."""

    most: int
    """Restarts within the window at most."""
    window_s: float
    backoff: Backoff

    def wait_s(self, begun_at: Sequence[float], now: float) -> float | None:
        """Return the time until the next start, 0 for one that is due; None when there were too many.

        `begun_at`: when it was begun again before, in any order, by the clock of `now`, in seconds.
        """
        lately = [at for at in begun_at if now - at < self.window_s]
        if len(lately) >= self.most:
            return None
        return max(0.0, self.backoff.wait_s(len(lately)) - (now - max(lately))) if lately else 0.0
