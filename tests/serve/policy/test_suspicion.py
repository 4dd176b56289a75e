"""Doubt about a replica after failed requests, as tables."""

from dataclasses import replace

import pytest

from serve.policy import replica_states
from serve.policy.replica_states import FAILED_REQUESTS, Facts, ProcessStatus
from serve.policy.suspicion import NO_FAILURES, Failures, ReplicaDoubt, after_failures, after_probe

READY = Facts(launch=ProcessStatus.SUCCEEDED, is_ready=True, first_ready_at=5.0)
MISSED = replace(READY, misses=1, first_miss_at=8.0)


@pytest.mark.parametrize(
    ("facts", "failures", "is_ready"),
    [
        (READY, NO_FAILURES, True),
        (READY, Failures(errors=10_000), True),  # A client may cause any number of failures.
        (MISSED, Failures(errors=FAILED_REQUESTS - 1), True),
        (MISSED, Failures(errors=FAILED_REQUESTS), False),  # The next probe has failed as well.
        (MISSED, NO_FAILURES, True),
        (READY, Failures(lost=FAILED_REQUESTS - 1), True),
        (READY, Failures(lost=FAILED_REQUESTS), False),  # No request causes such a failure.
        (READY, Failures(errors=10_000, lost=1), True),
    ],
)
def test_errors_count_after_a_failed_probe_and_lost_connections_at_once(facts, failures, is_ready):
    found = replica_states.failed_requests(facts, failures, 9.0)
    assert found.is_ready is is_ready
    assert is_ready is (found is facts)


def steps(*words: str | int) -> ReplicaDoubt:
    """A number is a report of the gateway; `ask` begins a careful probe, which `pass` ends."""
    doubt, asked = ReplicaDoubt(), 0
    for word in words:
        if isinstance(word, int):
            doubt = after_failures(doubt, word)
        elif word == "ask":
            asked = doubt.errors
        else:
            doubt = after_probe(doubt, asked)
    return doubt


@pytest.mark.parametrize(
    ("words", "is_open"),
    [
        ((0,), False),
        ((1,), True),
        ((3, 0), True),  # Open until a careful probe passes, also after a success, or without further requests.
        ((3, "ask", "pass"), False),
        ((3, "ask", "pass", 3), False),  # The same failures raise no second doubt.
        ((3, "ask", "pass", 4), True),
        ((3, "ask", 4, "pass"), True),  # One request has failed since the start of the probe.
        ((3, "ask", "pass", 0, 2), True),  # A new row of failures.
        ((3, "ask", 0, "pass", 0), False),
        ((3, "ask", 0, "pass", 1), True),
    ],
)
def test_doubt_is_open_from_a_failure_until_a_careful_probe_passes(words, is_open):
    assert steps(*words).is_open is is_open
