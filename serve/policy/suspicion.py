"""Doubt about a replica after failed requests, settled by a careful probe. Pure.

    requests fail -> doubt -> careful probe passes -> the requests were at fault
                                            fails  -> the failures count, and the replica is probed carefully until
                                                      it passes

A client can make an engine answer 5xx, break a stream or stay silent at will. Such failures alone therefore never take
out a replica (dev/decisions/0062). No client can make an engine refuse a connection, so refused connections count at
once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Consecutive failed requests at a replica, without a served request in between."""

    errors: int = 0
    """Answers of 5xx, broken answers, and answers after the time limit."""
    lost: int = 0
    """Connections refused by the engine."""


NO_FAILURES = Failures()


@dataclass(frozen=True, kw_only=True)
class ReplicaDoubt:
    """State of the doubt about a replica."""

    is_open: bool = False
    """True until a careful probe passes that began after the last failure."""
    errors: int = 0
    """Consecutive failed requests, by the last report of the gateway."""
    settled: int = 0
    """Number of failures outweighed by a careful probe."""


def after_failures(doubt: ReplicaDoubt, errors: int) -> ReplicaDoubt:
    """Return the doubt after the gateway has reported `errors` consecutive failed requests."""
    settled = doubt.settled if errors >= doubt.settled else 0  # a new series of failures
    return ReplicaDoubt(is_open=doubt.is_open or errors > settled, errors=errors, settled=settled)


def after_probe(doubt: ReplicaDoubt, errors: int) -> ReplicaDoubt:
    """Return the doubt after a careful probe has passed that began at `errors` consecutive failures."""
    settled = min(errors, doubt.errors)
    return ReplicaDoubt(is_open=doubt.errors > errors, errors=doubt.errors, settled=settled)
