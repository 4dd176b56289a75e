import pytest

from packs.sweeps.control.schedule import pack


def runs_by_pod(estimates_s, pods, placed=None):
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
def test_runs_go_to_the_shortest_queue(estimates_s, pods, lanes):
    assert runs_by_pod(estimates_s, pods) == lanes


def test_run_returns_to_its_pod_and_keeps_its_turn():
    assert runs_by_pod({"a": 1, "b": 1, "c": 1}, ["x", "y"], {"c": "x", "a": "gone"}) == [("b", "c"), ("a",)]
