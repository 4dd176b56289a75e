"""Predictions of the duration of steps, and of the remaining time of a run."""

import math
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from infra.ledger.accuracy import ANEW, REPEATED, compared, medians
from infra.ledger.timings import RunTimes
from infra.market.step_times import (
    AROUND,
    GUESS,
    NEWEST,
    SAME,
    SETTINGS,
    STEPS,
    StepTime,
    estimate,
    evidence,
    expect,
    remaining_s,
    total,
    words,
)
from infra.records import EstimateRequest, Expected, MachineKind, StepWork
from tests import seeds

BASE = StepWork(step="base", kind="base v1", machine="2 x CPU", shape="a", size=4e6, amount=1e12, guess_s=20.0,
                fixed_s=4.0)  # fmt: skip
SECONDS = st.floats(0.1, 1e5)
MANY = settings(max_examples=seeds.examples(40, 600))


def step_record(seconds: float, work: StepWork = BASE, at: float = 1e9, **more) -> StepTime:
    return StepTime(work=work, at=at, began_s=0.0, seconds=seconds, **more)


def marked_record(fixed_s: float, work_s: float, work: StepWork = BASE, first: float = 0.0, **more) -> StepTime:
    """Return a step with a startup time, followed by even progress from `first`."""
    shares = [min(1.0, first + (1 - first) * one / 10) for one in range(11)]
    marks = tuple((fixed_s + work_s * (share - first), share) for share in shares)
    return step_record(fixed_s + work_s * (1 - first), work, marks=marks, is_whole=not first, **more)


@MANY
@given(times=st.lists(SECONDS, min_size=1, max_size=30), order=st.randoms())
def test_an_expectation_is_within_its_range_and_independent_of_record_order(times, order):
    past = [step_record(one, at=1e9 + number) for number, one in enumerate(times)]
    found = expect(past, BASE)
    assert found.low <= found.seconds <= found.high and found.source == SAME
    assert min(times[-NEWEST:]) <= found.seconds <= max(times[-NEWEST:])
    order.shuffle(past)
    assert expect(past, BASE) == found


@MANY
@given(usual=st.lists(st.floats(90, 110), min_size=4, max_size=8), odd=st.floats(1e-3, 1e6), at=st.integers(0, 8))
def test_an_outlier_changes_an_expectation_little(usual, odd, at):
    past = [step_record(one, at=1e9 + number) for number, one in enumerate([*usual[:at], odd, *usual[at:]])]
    found = expect(past, BASE)
    assert 90 <= found.seconds <= 110
    assert found.low >= 80 and found.high <= 125


@MANY
@given(fixed_s=st.floats(0, 50), work_s=st.floats(1, 500), ratio=st.floats(0.01, 100))
def test_more_work_lengthens_only_the_work_and_not_the_startup(fixed_s, work_s, ratio):
    longer = replace(BASE, amount=BASE.amount * ratio)
    found = expect([marked_record(fixed_s, work_s)], longer)
    assert math.isclose(found.seconds, fixed_s + work_s * ratio, rel_tol=1e-6)
    assert math.isclose(found.fixed_s, fixed_s, rel_tol=1e-6, abs_tol=1e-6)


@MANY
@given(first=st.floats(0.05, 0.7))
def test_a_resumed_run_provides_the_pace_and_not_the_total(first):
    found = expect([marked_record(5.0, 100.0, first=first)], BASE)
    assert math.isclose(found.seconds, 105.0, rel_tol=1e-6)
    assert expect([step_record(30.0, is_whole=False)], BASE).source == GUESS


def test_the_nearest_records_are_used_and_named():
    other_size = replace(BASE, shape="b", size=8e6, amount=2e12)
    far_size = replace(BASE, shape="c", size=8e8, amount=2e14)
    other_step = replace(BASE, kind="sft v1", shape="d")
    past = [step_record(400.0, other_step), step_record(36.0, other_size), step_record(9e5, far_size)]
    assert expect(past[:1], BASE).source == STEPS
    assert (expect(past, BASE).source, expect(past, BASE).times) == (SETTINGS, 1)
    assert 15 < expect(past, BASE).seconds < 25  # 4 s, and half of 32 s; other model sizes do not count
    assert expect([*past, step_record(24.0)], BASE).seconds == 24.0
    assert expect([], BASE).source == GUESS and expect([], replace(BASE, guess_s=None)) is None


def test_a_toy_or_a_busy_machine_does_not_inflate_an_expectation():
    toy = marked_record(2.0, 0.6, replace(BASE, shape="t", size=1e5, amount=5e9))
    busy = step_record(75.0, replace(BASE, shape="b"), others=0.95)
    for record in (toy, busy):
        for other in (record, replace(record, work=replace(record.work, kind="sft v1"))):
            found = expect([other], BASE)
            assert (found.source, found.seconds) == (GUESS, BASE.guess_s)
    assert expect([step_record(9.0, replace(BASE, shape="t", amount=BASE.amount / 20))], BASE).source == SETTINGS


def test_records_of_other_machines_or_program_versions_are_ignored():
    past = [
        step_record(1.0, replace(BASE, machine="8 x H100")),
        step_record(1.0, replace(BASE, kind="text v2", amount=0.0)),
    ]
    assert expect(past, BASE).source == GUESS
    text = StepWork(step="text", kind="text v1", machine=BASE.machine, shape="x", guess_s=3.0)
    assert expect(past, text).source == GUESS  # v2 produces different output
    assert expect([step_record(7.0, replace(text, shape="y"))], text).seconds == 7.0


def test_records_of_a_busy_machine_count_only_without_better_records():
    busy = [step_record(90.0, others=0.6, at=2e9), step_record(100.0, others=0.5, at=3e9)]
    assert expect([*busy, step_record(50.0, others=0.01)], BASE).seconds == 50.0
    found = expect(busy, BASE)
    assert found.seconds == 95.0 and found.is_crowded and "busy" in words([found])


def test_the_source_of_figures_is_given_as_text():
    once = expect([step_record(20.0)], BASE)
    guess = Expected(step="text", seconds=20.0, low=10.0, high=40.0, fixed_s=20.0, source=GUESS)
    assert words([once, replace(guess, seconds=0.1)]) == "measured once"  # a step without duration does not count
    assert words([guess]) == "from a table"
    assert words([once, guess]) == "measured for 1 of 2 steps, estimated for the others"


def test_an_estimate_uses_the_table_until_a_measurement_and_grows_with_load():
    machine = MachineKind(name="2 x CPU", flops_per_s=1e11, is_here=True)
    train = replace(BASE, guess_s=None, amount=1e13)
    found = estimate(EstimateRequest(machine=machine, steps=(train,)))
    assert found.range_s == (0.75 * 104.0, 104.0, 1.8 * 104.0) and evidence(found) == "from a table"
    busy = replace(machine, others=0.5)
    assert estimate(EstimateRequest(machine=busy, steps=(train,))).range_s == (0.75 * 104.0, 156.0, 1.8 * 156.0)
    past = [step_record(50.0, train, others=0.0)]
    measured = estimate(EstimateRequest(machine=busy, steps=(train,)), past)
    assert measured.range_s == (40.0, 75.0, 93.75)
    assert evidence(measured) == "measured once on this machine; other processes use 50% of the CPUs now"
    crowded = estimate(EstimateRequest(machine=busy, steps=(train,)), [step_record(90.0, train, others=0.9)])
    assert crowded.range_s[1] == 90.0  # the measurement included the load
    elsewhere = replace(machine, is_here=False)
    assert evidence(estimate(EstimateRequest(machine=elsewhere, steps=(train,)), past)).endswith("this kind of machine")
    unknown = replace(machine, flops_per_s=None)
    text = StepWork(step="text", kind="text v1", machine=machine.name, shape="x", guess_s=3.0)
    assert estimate(EstimateRequest(machine=unknown, steps=(text, train))).steps == ()


def step(state: str, name: str = "base", **more) -> dict:
    return {"name": name, "state": state, **more}


FORECAST = [
    Expected(step=AROUND, seconds=4.0, low=3.0, high=5.0, fixed_s=4.0, source=SAME),
    Expected(step="text", seconds=6.0, low=5.0, high=8.0, fixed_s=6.0, source=SAME),
    Expected(step="base", seconds=60.0, low=50.0, high=75.0, fixed_s=10.0, source=SAME),
    Expected(step="sft", seconds=30.0, low=25.0, high=40.0, fixed_s=5.0, source=GUESS),
]


@MANY
@given(now=st.floats(0, 1e4), done=st.floats(0, 1), mark=st.floats(0, 1), at=st.floats(0, 1e4))
def test_the_remaining_time_is_within_its_range_for_any_report(now, done, mark, at):
    record = {"kind": "progress", "done": done, "total": 1.0, "at": 1e9 + at}
    running = step("running", started_at=1e9, ended_at=None, record=record, marks=[[5.0, mark]])
    ended = step("done", "text", started_at=1e9, ended_at=1e9 + at)
    found = remaining_s(FORECAST, [ended, running, step("waiting", "sft")], 1e9 + now, now)
    assert all(map(math.isfinite, found)) and 0 <= found[0] <= found[1] <= found[2]


def test_the_remaining_time_is_zero_after_the_end_and_full_before_the_start():
    waiting = [step("waiting", name) for name in ("text", "base", "sft")]
    assert remaining_s(FORECAST, waiting, 1e9, 0.0) == total(FORECAST)
    assert remaining_s(
        FORECAST, [step("done", one, started_at=1.0, ended_at=2.0) for one in ("text", "base", "sft")], 1e9, 60.0
    ) == (0.0, 0.0, 0.0)


def test_a_slow_run_corrects_the_remaining_time():
    def at(share: float, slower: float) -> float:
        """Return the time left after this share of base, on a machine slower by this factor."""
        now = 1e9 + slower * (10.0 + 50.0 * share)
        marks = [[slower * (10.0 + 50.0 * one / 20), one / 20] for one in range(1, 1 + int(20 * share))]
        running = step(
            "running", started_at=1e9, ended_at=None, marks=marks, record={"done": share, "total": 1.0, "at": now}
        )
        return remaining_s(FORECAST[2:3], [running], now, 0.0)[1]

    for slower in (0.5, 1.0, 2.0):
        errors = [abs(at(share, slower) / (slower * 50.0 * (1 - share)) - 1) for share in (0.1, 0.3, 0.6, 0.9)]
        assert errors == sorted(errors, reverse=True) or max(errors) < 0.01, (slower, errors)
        assert errors[-1] < 0.35, (slower, errors)


def test_the_remaining_time_of_a_run_is_not_less_than_its_running_step_reports():
    """A forecast from a table outweighs the pace of the first steps."""
    record = {"kind": "progress", "done": 0.02, "total": 1.0, "at": 1e9 + 30.0, "eta_s": 1500.0}
    running = step("running", started_at=1e9, ended_at=None, record=record, marks=[[5.0, 0.01]])
    low, expected, high = remaining_s(FORECAST, [running, step("waiting", "sft")], 1e9 + 40.0, 40.0)
    assert low < 1490.0 < expected < high


def run_of(
    number: int, speed: float, noise: random.Random, past: list[StepTime], amounts: tuple[float, ...]
) -> RunTimes:
    """Return a run on a simulated machine: every second is off by a tenth, and the start of a step by a third."""
    works = [StepWork(step=AROUND, kind="around", machine="m", shape="", guess_s=5.0, fixed_s=5.0)]
    works += [
        StepWork(
            step=f"step-{one}",
            kind=f"step-{one} v1",
            machine="m",
            shape=f"{amount}",
            size=1e6,
            amount=amount,
            guess_s=4.0 + amount / 1e10,
            fixed_s=4.0,
        )
        for one, amount in enumerate(amounts)
    ]
    expected = tuple(expect(past, work) for work in works)
    clock_s, times = 2.0, []
    for work in works[1:]:
        fixed_s, pace = 3.0 * noise.lognormvariate(0, 0.3), speed * noise.lognormvariate(0, 0.1)
        marks, at_s = [(fixed_s, 0.0)], fixed_s
        for share in range(1, 21):
            at_s += work.amount / 20 / 1e10 * pace * noise.lognormvariate(0, 0.1)
            marks.append((at_s, share / 20))
        times.append(StepTime(work=work, at=1e9 + number, began_s=clock_s, seconds=at_s + 1.0, marks=tuple(marks)))
        clock_s += at_s + 1.0
    times.append(StepTime(work=works[0], at=1e9 + number, began_s=0.0, seconds=4.0))
    return RunTimes(
        token=f"t{number}",
        run=f"r{number}",
        vendor="local",
        asked_at=1e9 + number,
        works=tuple(works),
        expected=expected,
        state="succeeded",
        wall_s=clock_s + 2.0,
        times=tuple(times),
    )


def test_forecasts_for_a_simulated_machine_have_the_required_accuracy():
    noise, past, found = random.Random(17), list[StepTime](), []
    for number in range(60):
        sizes = noise.choice([(2e11, 1e11), (2e11, 1e11, 3e11), (8e11, 1e11)])
        one = run_of(number, 2.5, noise, past, sizes)  # the formulas predict a machine two and a half times as fast
        past += one.times
        found.append(compared(one))
    middle = medians(found)
    assert middle.repeated_runs > 50 and middle.repeated < REPEATED / 2, middle
    assert middle.early < ANEW, middle
    assert abs(found[0].error) > 0.3  # the first forecast used a formula
    assert middle.inside > 0.7 * middle.early_runs, middle
