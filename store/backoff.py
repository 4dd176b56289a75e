"""The exponential backoff before retries, shared by the control side, data and serving.

`Backoff.wait_s` maps a number of failures to seconds. The agent has the same rule in `infra.agent.shortage`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

MOST_DOUBLINGS = 30  # reaches every maximum wait in use; more doublings could overflow a float


@dataclass(frozen=True)
class Backoff:
    """Waits that double up to a maximum, with jitter so that clients that failed together do not retry together."""

    first_s: float
    longest_s: float
    certain: float = 0.5
    """Deterministic share of a wait: 0 is full jitter, 1 is no jitter."""

    def wait_s(self, failures: int) -> float:
        """Return the wait in seconds after `failures` consecutive failures, at least 1."""
        whole_s = min(self.longest_s, self.first_s * 2 ** min(failures - 1, MOST_DOUBLINGS))
        return random.uniform(self.certain * whole_s, whole_s)


@dataclass(frozen=True)
class Retries:
    """The restart policy: the maximum number of restarts per window, and the backoff. Deterministic without jitter."""

    most: int
    """Maximum number of restarts within the window."""
    window_s: float
    backoff: Backoff

    def wait_s(self, begun_at: Sequence[float], now: float) -> float | None:
        """Return the seconds until the next start: 0 if due now, None if the maximum within the window is reached.

        begun_at: times of earlier restarts in seconds, in any order, on the clock of `now`.
        """
        lately = [at for at in begun_at if now - at < self.window_s]
        if len(lately) >= self.most:
            return None
        return max(0.0, self.backoff.wait_s(len(lately)) - (now - max(lately))) if lately else 0.0
