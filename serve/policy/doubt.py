"""The doubt that failed requests raise about a replica, which a careful probe settles. Pure.

    requests fail -> doubt -> careful probe passes -> the requests were at fault
                                            fails  -> the failures count, and the replica is probed carefully until
                                                      it passes

A client can make an engine answer 5xx, break a stream or stay silent as often as that client likes. So such failures
take out no replica by themselves (dev/decisions/0062). No client can make an engine refuse a connection: that counts at
once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Requests that failed in a row at a replica: none in between was served."""

    errors: int = 0
    """Answers of 5xx, broken answers, answers that did not come in time."""
    lost: int = 0
    """Connections that the engine did not take."""


NO_FAILURES = Failures()


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The doubt about a replica."""

    is_open: bool = False
    """True until a careful probe passes that began after the last failure."""
    errors: int = 0
    """Failed requests in a row, as the gateway said last."""
    settled: int = 0
    """Number of them that a careful probe has outweighed."""


def raised(doubt: Doubt, errors: int) -> Doubt:
    """Return the doubt after the gateway has reported so many failed requests in a row."""
    settled = doubt.settled if errors >= doubt.settled else 0  # another row has begun
    return Doubt(is_open=doubt.is_open or errors > settled, errors=errors, settled=settled)


def cleared(doubt: Doubt, errors: int) -> Doubt:
    """Return the doubt after a careful probe has passed that began when `errors` requests had failed in a row."""
    settled = min(errors, doubt.errors)
    return Doubt(is_open=doubt.errors > errors, errors=doubt.errors, settled=settled)
