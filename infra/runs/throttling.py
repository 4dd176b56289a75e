"""Pauses requested by vendors while a launch tries their offers.

`Throttling` decides after a rate-limited request if the same offer deserves a second request after a pause. A vendor
that wants a pause longer than `LONGEST_PAUSE_S` is skipped for the rest of the launch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.errors import RateLimited
from infra.providers import Provider, clock_scale
from infra.runs.timing import Say
from infra.units import duration

USUAL_PAUSE_S = 10.0  # Vendor clock: default pause if the vendor names no pause.
LONGEST_PAUSE_S = 120.0  # Vendor clock; SkyPilot and dstack wait about as long.


@dataclass
class Throttling:
    """The pauses of one launch."""

    say: Say
    sleep: Callable[[float], None] = time.sleep
    paused: set[str] = field(default_factory=set)
    """Ids of offers that were already retried."""
    closed: dict[str, str] = field(default_factory=dict)
    """Skipped vendors, with the reason."""

    def wait_for_retry(self, provider: Provider, offer_id: str, error: RateLimited) -> bool:
        """Wait for the pause that the vendor requests; return True if the same offer may be requested again."""
        pause_s = USUAL_PAUSE_S if error.retry_after_s is None else error.retry_after_s
        if pause_s > LONGEST_PAUSE_S:
            self.closed[provider.name] = f"{error}; {provider.name} asks for a pause of {duration(pause_s)}"
            return False
        if offer_id in self.paused:
            return False
        self.paused.add(offer_id)
        self.say(f"{provider.name} limits requests and asks for a pause of {duration(pause_s)}; waiting")
        self.sleep(pause_s / clock_scale(provider))
        return True
