import pytest

from packs.sweeps.control.schedule import pack


def dealt(estimates_s, pods, placed=None):
    return [lane.runs for lane in pack(estimates_s, pods, placed or {})]


@pytest.mark.parametrize(
    ("estimates_s", "pods", "lanes"),
    [
        ({"a": 1, "b": 1, "c": 1, "d": 1}, ["x", "y"], [("a", "c"), ("b", "d")]),
        ({"a": 9, "b": 1, "c": 1, "d": 1}, ["x", "y"], [("a",), ("b", "c", "d")]),
        ({"a": 0, "b": 0, "c": 0}, ["x", "y"], [("a", "c"), ("b",)]),
        ({"a": 1}, ["x", "y", "z"], [("a",), (), ()]),
    ],
)
def test_runs_go_where_least_waits(estimates_s, pods, lanes):
    assert dealt(estimates_s, pods) == lanes


def test_a_run_goes_back_to_the_pod_where_it_was_and_keeps_its_turn():
    assert dealt({"a": 1, "b": 1, "c": 1}, ["x", "y"], {"c": "x", "a": "gone"}) == [("b", "c"), ("a",)]
