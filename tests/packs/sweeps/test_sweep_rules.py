"""The rules of sweeps: early stops, the leader and the confidence interval, and the remaining budget."""

import itertools
import json
import math
from pathlib import Path

import pytest

from packs.sweeps.control.halving import Halving, goes_on, rungs
from packs.sweeps.control.plan import share
from packs.sweeps.control.trials import ranking
from packs.sweeps.control.trials.ranking import ArmResult, Ranking
from packs.sweeps.control.trials.records import EarlyStop

RECORDED = json.loads(Path(__file__).with_name("optuna_decisions.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"factor {case['factor']}")
def test_early_stops_equal_the_decisions_of_optunas_pruner(case):
    early = EarlyStop(first=case["first"], factor=case["factor"])
    halving = Halving(early.factor, rungs(case["steps"], early))
    seen: dict[int, dict[int, float]] = {}
    stopped = {}
    for trial, step, value in case["told"]:
        seen.setdefault(trial, {})[step] = value
        if halving.record(str(trial), seen[trial]) is not None:
            stopped[str(trial)] = step
    assert stopped == case["pruned"] and len(stopped) > 3


def test_late_report_of_a_rung_has_the_same_decision():
    halving = Halving(2, rungs(40, EarlyStop()))
    assert halving.rungs == [10, 20]
    assert halving.record("a", {10: 1.0, 20: 0.8}) is None
    assert halving.record("b", {10: 1.1}) == 10
    assert halving.record("c", {10: 0.9}) is None
    assert halving.record("c", {10: 0.9, 20: 0.9}) == 20
    assert not goes_on(math.nan, [math.nan], 2)


def lines(values, first=1):
    return [{"step": first + at, "tokens": 1, "loss": value} for at, value in enumerate(values)]


def test_score_is_the_mean_of_the_last_steps_or_a_metric_of_the_artifact():
    told = lines([9.0] * 16 + [2.0, 4.0, 3.0, 3.0])
    assert ranking.score(told, Ranking(last=0.2), 20, {}) == 3.0
    assert ranking.score(told[:15], Ranking(last=0.2), 20, {}) is None
    assert ranking.figure_at(told, Ranking(last=0.1), 20, 17) == 5.5
    assert ranking.score(told, Ranking(by="bits_per_byte"), 20, {"bits_per_byte": 1.5}) == 1.5


def test_differences_are_paired_and_an_inconclusive_interval_is_reported():
    one = ArmResult(name="a", scores={1: 2.0, 2: 3.0, 3: 4.0}, wanted=3)
    far = ArmResult(name="b", scores={1: 2.51, 2: 3.5, 3: 4.49}, wanted=3)
    near = ArmResult(name="c", scores={1: 2.1, 2: 2.9, 3: 4.05, 4: 9.0}, wanted=4)
    single = ArmResult(name="d", scores={2: 1.0}, wanted=3)
    found = ranking.difference(far, one)
    assert found and found.verdict == "different" and found.mean == pytest.approx(0.5)
    assert found.half == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)
    nothing = ranking.difference(near, one)
    assert nothing and (nothing.verdict, nothing.pairs) == ("no difference", 3)
    alone = ranking.difference(single, one)
    assert alone and alone.verdict == "one seed"
    order = [arm.name for arm in ranking.ranked([single, far, one], Ranking())]
    assert order == ["a", "b", "d"]  # One seed of three is no mean over seeds.
    assert [arm.name for arm in ranking.ranked([far, one], Ranking(mode="max"))] == ["b", "a"]


def test_trial_without_a_limit_gets_an_equal_share():
    assert (share(100, 8, None), share(100, 8, 50), share(100, 8, 500)) == (12, 50, 100)


def test_early_stops_find_the_winner_of_recorded_curves_for_less_in_any_order():
    """Losses of four rates x two seeds of `tiny`, 60 steps, recorded as a whole grid on two cores."""
    recorded = json.loads(Path(__file__).with_name("rates_curves.json").read_text())
    curves = {(one["arm"], one["seed"]): lines(one["loss"]) for one in recorded}
    arms, ranking_by, steps = sorted({arm for arm, _ in curves}), Ranking(), 60

    def at(arm: str, seed: int, step: int) -> float:
        found = ranking.figure_at(curves[arm, seed], ranking_by, steps, step)
        assert found is not None
        return found

    def winner(some) -> str:
        return min(some, key=lambda arm: at(arm, 1, steps) + at(arm, 2, steps))

    shares = []
    for order in itertools.permutations(arms):
        halving = Halving(2, rungs(steps, EarlyStop()))
        stops = {arm: halving.record(arm, {rung: at(arm, 1, rung) for rung in halving.rungs}) for arm in order}
        left = [arm for arm in order if stops[arm] is None]
        spent = sum(stop or steps for stop in stops.values()) + steps * len(left)
        shares.append(spent / (steps * len(curves)))
        assert winner(left) == winner(arms)
    assert sum(shares) / len(shares) < 0.6 and min(shares) < 0.4
    assert max(shares) == 1.0, "an order in which each is the best so far saves nothing, hence the order by chance"
