"""Pauses that vendors ask for while a launch tries their offers.

In: the refusal of a request. Out: whether the same offer is worth another request, after the pause that the vendor
wants. A vendor that wants a longer pause than a launch waits is left out for the rest of that launch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.errors import RateLimited
from infra.providers import Provider, clock_scale
from infra.runs.timing import Say
from infra.units import duration

USUAL_PAUSE_S = 10.0  # by the vendor's clock, where the vendor names none
LONGEST_PAUSE_S = 120.0  # likewise; SkyPilot and dstack wait about as long


@dataclass
class Throttling:
    """The pauses of one launch."""

    say: Say
    sleep: Callable[[float], None] = time.sleep
    paused: set[str] = field(default_factory=set)
    """Offers that were asked for twice already."""
    closed: dict[str, str] = field(default_factory=dict)
    """Vendors that are left out, with the reason."""

    def may_ask_again(self, provider: Provider, offer_id: str, error: RateLimited) -> bool:
        """Wait as long as the vendor asks; return whether to ask for the same offer again."""
        pause_s = USUAL_PAUSE_S if error.retry_after_s is None else error.retry_after_s
        if pause_s > LONGEST_PAUSE_S:
            self.closed[provider.name] = f"{error}; {provider.name} wants a pause of {duration(pause_s)}"
            return False
        if offer_id in self.paused:
            return False
        self.paused.add(offer_id)
        self.say(f"{provider.name} limits requests and wants a pause of {duration(pause_s)}; waiting")
        self.sleep(pause_s / clock_scale(provider))
        return True
