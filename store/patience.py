"""Timeouts and retries of requests to another machine: every attempt has a deadline, and so have all of them together.

In: something to do with a store, and what its client raises. Out: its result, or one StoreError in words without
secrets. A timeout per read is none: an answer that drips keeps it, so each attempt runs in a thread of its own, which
is left behind when its time is over (its own timeouts end it).
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from store import credentials
from store.backoff import Backoff
from store.manifest import StoreError

LONGEST_WAIT_S = 60.0  # longest wait that another side may ask for
SLOWEST_BYTES_PER_S = 100_000  # below that a transfer counts as stuck
_SIGNED = re.compile(r"(?i)((?:x-amz-[a-z-]+|signature|awsaccesskeyid|token|expires)=)[^&\s'\"]+")
_BEARER = re.compile(r"(?i)(bearer )\S+")

T = TypeVar("T")


class StoreAway(StoreError):
    """The store could not be reached before the deadline; it may go better later."""


class Conflict(StoreError):
    """The file to be replaced was changed by somebody else."""


class Again(Exception):
    """A retryable failure, to be tried again after `wait_s` where the other side said so."""

    def __init__(self, seen: str, wait_s: float | None = None) -> None:
        super().__init__(seen)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Patience:
    answer_s: float = 30.0
    """Seconds for one attempt, without the time to move its bytes."""
    total_s: float = 120.0
    """Seconds for all attempts, without the time to move the bytes of one."""
    tries: int = 6
    first_wait_s: float = 0.5

    def ask(self, what: str, action: Callable[[], T], num_bytes: int = 0) -> T:
        """Return the result of `action`, retried until the deadline; it raises Again for what may go better.

        num_bytes: how many it moves. Raises StoreAway at the deadline, and whatever else `action` raises.
        """
        moving_s = num_bytes / SLOWEST_BYTES_PER_S
        ends_at = time.monotonic() + self.total_s + moving_s
        backoff = Backoff(self.first_wait_s, LONGEST_WAIT_S)
        for tries in range(1, self.tries + 1):
            try:
                return within(min(self.answer_s + moving_s, ends_at - time.monotonic()), action)
            except Again as error:
                pause_s = backoff.wait_s(tries) if error.wait_s is None else min(error.wait_s, LONGEST_WAIT_S)
                seen = str(error)
            if tries == self.tries or time.monotonic() + pause_s >= ends_at:
                break
            time.sleep(pause_s)
        raise StoreAway(f"{what}: {clean(seen)}; given up after {tries} tries")


def within(limit_s: float, action: Callable[[], T]) -> T:
    """Return the result of `action`; raise Again when it takes longer."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(action())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(max(0.0, limit_s))
    if failed:
        raise failed[0]
    if not done:
        raise Again(f"no answer in {limit_s:.0f} s")
    return done[0]


def clean(text: object) -> str:
    """Return `text` as one line, without what signs an address and without the values of credentials."""
    line = " ".join(str(text).split())
    return credentials.struck_out(_BEARER.sub(r"\1***", _SIGNED.sub(r"\1***", line)))
