"""The estimator of the time of steps, and of what is left of a run that is at work.

    EstimateRequest: kind of machine, what each step does -> estimate -> Estimate: low, middle, high, and the evidence

Plans, `cost --estimate`, `fit`, limits, the pipeline and pages of reference all call `estimate`;
`flows.planning.estimates` makes the requests. Times that were measured (`StepTime`) count before the table of speeds.
Every record makes a prediction of its own: the median of them is what is expected, the outermost are the range, so that
a record that is far off moves neither far. On a machine whose CPUs other processes use, middle and high grow by their
share; low does not, since those may end. Pure; seconds are real ones, of the clock of whoever works.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.records import Estimate, EstimateRequest, Expected, MachineKind, StepWork

SAME, SETTINGS, STEPS, GUESS = "the same", "other settings", "other steps", "a guess"  # the sources of an Expected
LOW, HIGH = 0.75, 1.8  # times a guess: our own models between small and large batches
# Factors by which a prediction may be off either way, beyond the spread that was seen: from the same work, once and
# more often; from other settings of the step; from other steps on the same machine.
ONCE, OFTEN, ELSEWHERE, OF_OTHERS = 1.25, 1.1, 1.5, 1.8
SETUP_S = (120.0, 300.0, 1200.0)  # boot, environment, inputs of a rented pod: low, expected, high
NEWEST = 9  # records, of which a prediction is made: what a machine did long ago says less
MANY = 5  # with this many records the outermost is left out of the range on either side
CROWDED = 0.25  # share of a machine's CPUs: when others had more, a record counts only where there is no better one
FAR = 30.0  # times the work of a record with other settings: beyond, the formula knows a machine's pace better
LEAST_PART = 0.2  # share of the work: a smaller part says little about its pace
MOST = 1e30  # any larger number was not measured
LEAST_OTHERS = 0.05  # share of the CPUs: less is not worth a word
LAST = 0.1  # share of the time around the steps that is still to come once the first of them has started
AROUND = ""  # the name of what a run takes besides its steps: until the first begins, between them, after the last
FIRM = {SAME: 0.2, SETTINGS: 0.1, STEPS: 0.05, GUESS: 0.03}  # shares of all work that must have run to outweigh it


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The measured time of one step."""

    work: StepWork
    at: float
    """UTC epoch seconds of its end."""
    began_s: float
    """Seconds from the request of the run to the start of the step."""
    seconds: float
    marks: tuple[tuple[float, float], ...] = ()
    """Seconds since it began, with the share of its work done by then."""
    is_whole: bool = True
    """True if the step did all of its work without interruption."""
    others: float | None = None
    """Share of the machine's CPUs that other programs used meanwhile; None = not known."""

    def __post_init__(self) -> None:
        shares = [share for _, share in self.marks]
        numbers = [self.at, self.began_s, self.seconds, self.work.size, self.work.amount, self.work.fixed_s,
                   self.others or 0.0, *(seconds for seconds, _ in self.marks)]  # fmt: skip
        if not all(0 <= one < MOST for one in numbers) or not all(0 <= one <= 1 for one in shares):
            raise ValueError(f"{self.work.step}: a time or a share is out of range")

    @property
    def is_crowded(self) -> bool:
        return self.others is not None and self.others > CROWDED


def estimate(request: EstimateRequest, past: Iterable[StepTime] = ()) -> Estimate:
    """Return the estimated time of each step, by measured times and else by the table; () where one is not known."""
    known, found = list(past), []
    for work in request.steps:
        one = expect(known, _by_table(work, request.machine))
        if one is None:
            return Estimate(machine=request.machine, steps=())
        found.append(one if one.is_crowded else _beside_others(one, request.machine.others))
    return Estimate(machine=request.machine, steps=tuple(found))


def _by_table(work: StepWork, machine: MachineKind) -> StepWork:
    """Return the work with its seconds by the table of speeds, where it has an amount and the machine a speed."""
    if work.guess_s is not None or not work.amount or not machine.flops_per_s:
        return work
    return replace(work, guess_s=work.fixed_s + work.amount / machine.flops_per_s)


def _beside_others(one: Expected, share: float) -> Expected:
    """Return the estimate on a machine of whose CPUs other processes use a share.

    Threads of all processes share the CPUs evenly: as many as there are CPUs, beside `share` times as many, get
    1 / (1 + share) of them.
    """
    slower = 1 + share
    return replace(one, seconds=one.seconds * slower, high=one.high * slower, fixed_s=one.fixed_s * slower)


def expect(past: Iterable[StepTime], work: StepWork) -> Expected | None:
    """Return the forecast of `work` by the records that are nearest to it; None where there are none."""
    here = [one for one in past if one.work.machine == work.machine]
    alike = [one for one in here if one.work.kind == work.kind and one.work.shape == work.shape]
    near = [one for one in here if _says_something_of_others(one, work)]
    for source, records, spread in (
        (SAME, alike, ONCE),
        (SETTINGS, _nearest([one for one in near if one.work.kind == work.kind], work), ELSEWHERE),
        (STEPS, _nearest([one for one in near if one.work.amount and work.amount], work), OF_OTHERS),
    ):
        if found := _of_records(records, work, source, spread):
            return found
    if work.guess_s is None:
        return None
    low, high = LOW * work.guess_s, HIGH * work.guess_s
    fixed_s = min(work.fixed_s, work.guess_s)
    return Expected(step=work.step, seconds=work.guess_s, low=low, high=high, fixed_s=fixed_s, source=GUESS)


def _says_something_of_others(one: StepTime, work: StepWork) -> bool:
    """Return whether a record is better than the formula for a step with other settings.

    That of a toy that was over in a second, or of a machine that was busy with something else, would make hours of
    minutes.
    """
    return work.guess_s is None or not (one.is_crowded or work.amount > FAR * one.work.amount)


def _of_records(records: Sequence[StepTime], work: StepWork, source: str, spread: float) -> Expected | None:
    usable = [(one, *found) for one in records if (found := predicted(one, work)) is not None]
    calm = [one for one in usable if not one[0].is_crowded] or usable
    newest = sorted(calm, key=lambda one: (one[0].at, one[1]))[-NEWEST:]
    if not newest:
        return None
    totals = sorted(seconds for _, seconds, _ in newest)
    seconds, fixed_s = statistics.median(totals), statistics.median(fixed for _, _, fixed in newest)
    if source == SAME and len(totals) > 1:
        spread = OFTEN
    inner = totals[1:-1] if len(totals) >= MANY else totals
    return Expected(
        step=work.step, seconds=seconds, low=inner[0] / spread, high=inner[-1] * spread,
        fixed_s=min(fixed_s, seconds), source=source, times=len(totals), is_crowded=newest[-1][0].is_crowded,
    )  # fmt: skip


def predicted(one: StepTime, work: StepWork) -> tuple[float, float] | None:
    """Return the seconds of `work` by one record, and what of them does not grow; None where it does not say."""
    before = one.work
    if not before.amount or not work.amount:
        return (one.seconds, one.seconds) if one.is_whole else None
    ratio = work.amount / before.amount
    if one.marks and one.marks[-1][1] - one.marks[0][1] >= LEAST_PART:
        (first_s, first), (last_s, last) = one.marks[0], one.marks[-1]
        whole_s = (last_s - first_s) / (last - first)
        fixed_s = max(0.0, one.seconds - (whole_s if one.is_whole else last_s - first_s))
    elif one.is_whole:
        fixed_s = min(before.fixed_s, one.seconds)
        whole_s = one.seconds - fixed_s
    else:
        return None
    return fixed_s + whole_s * ratio, fixed_s


def _nearest(records: Sequence[StepTime], work: StepWork) -> list[StepTime]:
    """Return those of the model whose size is nearest: small ones use a machine less well than large ones."""

    def distance(one: StepTime) -> float:
        if not one.work.size or not work.size:
            return 0.0
        return abs(math.log(one.work.size / work.size))

    least = min(map(distance, records), default=0.0)
    return [one for one in records if distance(one) <= least + 1e-9]


def total(found: Iterable[Expected]) -> tuple[float, float, float]:
    """Return low, expected and high of all together."""
    sums = [math.fsum(each) for each in zip(*(one.range_s for one in found), strict=True)] or [0.0, 0.0, 0.0]
    return sums[0], sums[1], sums[2]


def words(found: Sequence[Expected]) -> str:
    """Return the evidence of their figures: `measured 3 times`, `from a table`."""
    steps, heavy = _steps(found), _heavy(_steps(found))
    if all(one.source == GUESS for one in heavy):
        return "from a table"
    crowd = ", while the machine was busy" if any(one.is_crowded for one in heavy) else ""
    if all(one.source == SAME for one in heavy):
        times = min(one.times for one in heavy)
        return f"measured {'once' if times == 1 else f'{times} times'}{crowd}"
    exact = sum(one.source == SAME for one in steps)
    if exact:
        return f"measured for {exact} of {len(steps)} steps, estimated for the others{crowd}"
    return f"estimated from other runs{crowd}"


def evidence(found: Estimate) -> str:
    """Return the evidence of an estimate, with the machine that was measured, and what others take of this one now."""
    said = words(found.steps)
    if is_measured(found.steps):
        said += " on this machine" if found.machine.is_here else " on this kind of machine"
    if found.machine.others >= LEAST_OTHERS:
        said += f"; other processes use {found.machine.others:.0%} of its CPUs now"
    return said


def is_measured(found: Sequence[Expected]) -> bool:
    """Return whether the forecast rests on measurements of this kind of machine, for every step that takes long."""
    return bool(found) and all(one.source != GUESS for one in _heavy(_steps(found)))


def _steps(found: Sequence[Expected]) -> Sequence[Expected]:
    return [one for one in found if one.step != AROUND] or found


def _heavy(steps: Sequence[Expected]) -> Sequence[Expected]:
    whole_s = math.fsum(one.seconds for one in steps)
    return [one for one in steps if one.seconds >= 0.05 * whole_s] or steps


# A run at work.


def left(
    forecast: Sequence[Expected], steps: Sequence[Mapping[str, Any]], now: float, since_s: float
) -> tuple[float, float, float]:
    """Return low, expected and high of the seconds that are left of a run.

    `steps`: of its progress; `now`: UTC epoch seconds by the clock of its machine; `since_s`: since it was asked for,
    which says how much of the time around its steps has passed, as long as none has begun. What the steps have taken so
    far corrects what is expected of those to come, the sooner the less is known of them; the pace of the one that runs
    counts the more, the more it has done.
    """
    known = {one.step: one for one in forecast}
    factor = {has_work: _factor(known, steps, now, has_work) for has_work in (True, False)}
    parts = []
    for step in steps:
        expected = known.get(step["name"])
        if expected is None or step["state"] in ("done", "reused", "failed"):
            continue
        corrected = _scaled(expected, factor[_has_work(expected)])
        parts.append(_of_running(corrected, step, now) if step["state"] == "running" else corrected.range_s)
    if (around := known.get(AROUND)) and parts:
        low, seconds, high = (_remaining(one, since_s) for one in around.range_s)
        has_begun = any(step.get("started_at") for step in steps if step["name"] in known)
        parts.append((0.0, LAST * around.seconds, LAST * around.high) if has_begun else (low, seconds, high))
    sums = [math.fsum(each) for each in zip(*parts, strict=True)] or [0.0, 0.0, 0.0]
    return sums[0], sums[1], sums[2]


def _has_work(one: Expected) -> bool:
    """Return whether most of it grows with its work, as training does."""
    return one.fixed_s < one.seconds


def _scaled(one: Expected, by: float) -> Expected:
    return replace(one, seconds=one.seconds * by, low=one.low * by, high=one.high * by, fixed_s=one.fixed_s * by)


def _factor(known: Mapping[str, Expected], steps: Sequence[Mapping[str, Any]], now: float, has_work: bool) -> float:
    """Return by how much steps take longer than expected, as far as that is seen."""
    alike = {name: one for name, one in known.items() if name != AROUND and _has_work(one) == has_work}
    took_s = meant_s = 0.0
    for step in steps:
        expected = alike.get(step["name"])
        if expected is None:
            continue
        if step["state"] == "done":
            took_s, meant_s = took_s + elapsed_s(step, now), meant_s + expected.seconds
        elif step["state"] == "running" and (seen := _pace(step)):
            share, spent_s = seen
            took_s += spent_s
            meant_s += share * (expected.seconds - expected.fixed_s)
    trust_s = sum(FIRM[one.source] * one.seconds for one in alike.values())
    return (took_s + trust_s) / (meant_s + trust_s) if meant_s and trust_s else 1.0


def _of_running(expected: Expected, step: Mapping[str, Any], now: float) -> tuple[float, float, float]:
    """Return the time left of the running step: by its own pace, and by the forecast."""
    gone_s = elapsed_s(step, now)
    by_forecast = [_remaining(one, gone_s) for one in expected.range_s]
    seen, done = _pace(step), share_done(step)
    if seen is None or done is None:
        return by_forecast[0], by_forecast[1], by_forecast[2]
    share, spent_s = seen
    work_s = max(0.0, expected.seconds - expected.fixed_s)
    tail_s = max(0.0, expected.fixed_s - _first_s(step))
    rest = 1.0 - done
    trust = share / (share + FIRM[expected.source])
    since_s = max(0.0, gone_s - _last_s(step))  # since it last told anything
    found = trust * spent_s / share * rest + (1 - trust) * work_s * rest + tail_s
    found = _remaining(found + since_s, since_s)
    low, high = expected.low / max(expected.seconds, 1e-9), expected.high / max(expected.seconds, 1e-9)
    doubt = 1 - 0.8 * trust
    return found * (1 - doubt * (1 - low)), found, found * (1 + doubt * (high - 1))


def _remaining(whole_s: float, gone_s: float) -> float:
    """Return the rest of so many seconds; of an overdue step, a tenth of what has passed."""
    return whole_s - gone_s if whole_s > 1.1 * gone_s else 0.1 * gone_s


def elapsed_s(step: Mapping[str, Any], now: float) -> float:
    """Return for how long a step of a progress has run; 0 before it began."""
    if not step.get("started_at"):
        return 0.0
    return max(0.0, (step.get("ended_at") or now) - step["started_at"])


def share_done(step: Mapping[str, Any]) -> float | None:
    """Return the share of its work that a step reports as done."""
    record = step.get("record") or {}
    done, whole = record.get("done"), record.get("total")
    return min(1.0, max(0.0, done / whole)) if done is not None and whole else None


def _pace(step: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the share of its work that a step has done since its first mark, and in which time; None before that."""
    marks, record, done = step.get("marks") or (), step.get("record") or {}, share_done(step)
    if not marks or done is None or not record.get("at") or not step.get("started_at"):
        return None
    share, spent_s = done - marks[0][1], record["at"] - step["started_at"] - marks[0][0]
    return (share, spent_s) if share > 0 and spent_s > 0 else None


def _first_s(step: Mapping[str, Any]) -> float:
    return float(step["marks"][0][0])


def _last_s(step: Mapping[str, Any]) -> float:
    return float(step["record"]["at"] - step["started_at"])
