"""Deliberate exceptions of the control side, with the exit code of each.

    SlipwayError            1  something failed
    ├── Ambiguous           1  a vendor's answer was lost: what was asked for may exist, and cost
    ├── HubUnreachable      1  no connection to the hub: there may be no network
    ├── UsageError          2  a wrong word, a missing file, a failed preflight
    │   └── OutOfMoney      2  the account cannot pay for it
    ├── NoOffer             3  nothing matches
    │   ├── Busy            3  what would match is in use
    │   └── RateLimited     3  a vendor takes no more requests for a while
    ├── AuthError           4  a key is missing or refused
    │   └── MissingKey      4  no key is set
    └── LimitHit            5  a limit was hit, or an audit found something

Each message says what failed, the observed cause, whether money is being spent, and which command to run next.
"""


class SlipwayError(Exception):
    exit_code = 1


class Ambiguous(SlipwayError):
    pass


class HubUnreachable(SlipwayError):
    pass


class UsageError(SlipwayError):
    exit_code = 2


class OutOfMoney(UsageError):
    pass


class NoOffer(SlipwayError):
    exit_code = 3


class Busy(NoOffer):
    pass


class RateLimited(NoOffer):
    """A vendor rejected a request because of too many requests. `retry_after_s`: the requested pause, or None."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AuthError(SlipwayError):
    exit_code = 4


class MissingKey(AuthError, UsageError):
    """No vendor key is set."""


class LimitHit(SlipwayError):
    exit_code = 5


class CheckFailed(SlipwayError):
    """A check found a problem."""

    exit_code = 5


def describe(error: Exception) -> str:
    """Return the message of a SlipwayError; other exceptions, which are bugs, with the type's name."""
    return str(error) if isinstance(error, SlipwayError) else f"{type(error).__name__}: {error}"


def as_slipway_error(error: Exception, what: str) -> SlipwayError:
    """Return a SlipwayError unchanged; wrap other exceptions in a SlipwayError with the operation `what`."""
    return error if isinstance(error, SlipwayError) else SlipwayError(f"{what}: {describe(error)}")
