"""The timeouts and retries of requests to remote stores: each attempt has a timeout, and all attempts share a deadline.

`Patience.retry` takes an action and returns its result, or raises one StoreError without secrets in the message. Read
timeouts of a client are not enough, since a slowly dripping response never triggers them. So each attempt runs in a
thread, which is abandoned after the timeout and ends by the client's own timeouts.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from store import credentials
from store.backoff import Backoff
from store.manifest import StoreError

LONGEST_WAIT_S = 60.0  # upper bound for Retry-After
SHOWN_WAIT_S = 5.0  # a longer wait is reported
SLOWEST_BYTES_PER_S = 100_000  # slower transfers count as stuck
_SIGNED = re.compile(r"(?i)((?:x-amz-[a-z-]+|signature|awsaccesskeyid|token|expires)=)[^&\s'\"]+")
_BEARER = re.compile(r"(?i)(bearer )\S+")
# Of the header `ratelimit: "api";r=0;t=55` of a Hugging Face hub.
_SPENT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

T = TypeVar("T")
log = logging.getLogger(__name__)


class StoreAway(StoreError):
    """The store was unreachable until the deadline; a later attempt may succeed."""


class Conflict(StoreError):
    """The file to be replaced was changed by a concurrent writer."""


class Retryable(Exception):
    """A retryable failure, with the wait in seconds if the server requested a wait."""

    def __init__(self, seen: str, wait_s: float | None = None) -> None:
        super().__init__(seen)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Patience:
    answer_s: float = 30.0
    """Timeout of one attempt in seconds, without the transfer time."""
    total_s: float = 120.0
    """Deadline for all attempts in seconds, without the transfer time of one attempt."""
    tries: int = 6
    first_wait_s: float = 0.5

    def retry(self, what: str, action: Callable[[], T], num_bytes: int = 0) -> T:
        """Return the result of `action`; retry until the deadline while `action` raises Again.

        num_bytes: size of the transfer, which extends the timeouts. Raise StoreAway after the last attempt; other
        errors of `action` propagate.
        """
        moving_s = num_bytes / SLOWEST_BYTES_PER_S
        ends_at = time.monotonic() + self.total_s + moving_s
        backoff = Backoff(self.first_wait_s, LONGEST_WAIT_S)
        for tries in range(1, self.tries + 1):
            try:
                return run_with_timeout(min(self.answer_s + moving_s, ends_at - time.monotonic()), action)
            except Retryable as error:
                pause_s = backoff.wait_s(tries) if error.wait_s is None else min(error.wait_s, LONGEST_WAIT_S)
                seen = str(error)
            if tries == self.tries or time.monotonic() + pause_s >= ends_at:
                break
            if pause_s > SHOWN_WAIT_S:
                log.warning("%s: %s; trying again in %.0f s", what, clean(seen), pause_s)
            time.sleep(pause_s)
        raise StoreAway(f"{what}: {clean(seen)}; given up after {tries} tries")


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait: Retry-After in seconds or as a date, or a spent rate limit.

    headers: names in lower case, or a mapping that ignores case. Return None if the answer asks for no wait.
    """
    from email.utils import parsedate_to_datetime

    said = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", said):
        return float(said)
    if said:
        try:
            # The clock of this machine may be wrong, so the date of the answer goes first.
            now_s = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
            return max(0.0, parsedate_to_datetime(said).timestamp() - now_s)
        except (ValueError, OverflowError, TypeError, IndexError):
            return None
    spent = _SPENT.search(headers.get("ratelimit", ""))
    return float(spent[1]) if spent else None


def run_with_timeout(limit_s: float, action: Callable[[], T]) -> T:
    """Return the result of `action`; raise Again if the action takes longer than `limit_s` seconds."""
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
        raise Retryable(f"no answer in {limit_s:.0f} s")
    return done[0]


def clean(text: object) -> str:
    """Return `text` as one line, with URL signatures, bearer tokens and credential values masked."""
    line = " ".join(str(text).split())
    return credentials.masked(_BEARER.sub(r"\1***", _SIGNED.sub(r"\1***", line)))
