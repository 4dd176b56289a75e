"""Pauses requested by vendors, as taken by a launch."""

from dataclasses import dataclass

import pytest

from infra.errors import RateLimited
from infra.runs.throttling import LONGEST_PAUSE_S, USUAL_PAUSE_S, Throttling


@dataclass
class Vendor:
    name: str = "runpod"
    is_rented: bool = True
    clock_scale: float = 1.0


@pytest.mark.parametrize(
    ("asked_s", "pause_s"), [(7.0, 7.0), (None, USUAL_PAUSE_S), (LONGEST_PAUSE_S, LONGEST_PAUSE_S)]
)
def test_a_requested_pause_is_shown_and_taken_once_per_offer(asked_s, pause_s):
    said, slept = [], []
    throttling = Throttling(said.append, slept.append)
    error = RateLimited("runpod accepts no more requests now: 429", asked_s)
    assert throttling.wait_for_retry(Vendor(), "a", error) and not throttling.wait_for_retry(Vendor(), "a", error)
    assert slept == [pause_s] and len(said) == 1 and "runpod limits requests" in said[0]
    assert throttling.wait_for_retry(Vendor(), "b", error) and throttling.closed == {}


def test_a_vendor_with_a_longer_pause_is_skipped():
    slept = []
    throttling = Throttling(lambda _: None, slept.append)
    assert not throttling.wait_for_retry(Vendor(), "a", RateLimited("429", 1_724.0))
    assert slept == [] and "28 min 44 s" in throttling.closed["runpod"]
