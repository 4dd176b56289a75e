"""Estimator of step times, and of the remaining time of a running run.

    EstimateRequest: machine kind and work per step -> estimate -> Estimate: low, expected, high, and the evidence

Plans, `cost --estimate`, `fit`, limits, the pipeline and the reference of jobs all call `estimate`;
`flows.planning.estimates` builds the requests. Measured times (`StepTime`) take precedence over the table of speeds.
Every record makes a prediction; the median is the expected time and the extremes form the range, so a single outlier
moves neither far. On a machine with CPUs shared by other processes, the expected time and the high end grow by the used
share; the low end does not, since other processes may end. Pure functions; seconds are real seconds of the working
machine's clock.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.records import Estimate, EstimateRequest, Expected, MachineKind, StepWork

SAME, SETTINGS, STEPS, GUESS = "the same", "other settings", "other steps", "a guess"  # the sources of an Expected
LOW, HIGH = 0.75, 1.8  # factors of a table estimate, from our own models between small and large batches
# Uncertainty factors of a prediction in both directions, beyond the observed spread: from a single measurement of the
# same work, from several, from other settings of the step, and from other steps on the same machine.
ONCE, OFTEN, ELSEWHERE, OF_OTHERS = 1.25, 1.1, 1.5, 1.8
SETUP_S = (120.0, 300.0, 1200.0)  # boot, environment, inputs of a rented pod: low, expected, high
NEWEST = 9  # number of newest records in a prediction: old measurements predict less
MANY = 5  # with this many records the range excludes the lowest and the highest
CROWDED = 0.25  # CPU share of other programs above which a record counts only without better records
FAR = 30.0  # largest extrapolation (ratio of amounts) from other settings; beyond, use the table
LEAST_PART = 0.2  # smallest share of the work with a meaningful pace
MOST = 1e30  # larger numbers cannot be measurements
LEAST_OTHERS = 0.05  # CPU share below which other processes are not mentioned
LAST = 0.1  # remaining share of the time around the steps once the first step has started
AROUND = ""  # name of the time before the first step, between steps and after the last step
# share of all work after which the observed pace outweighs the forecast
FIRM = {SAME: 0.2, SETTINGS: 0.1, STEPS: 0.05, GUESS: 0.03}


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The measured time of a step."""

    work: StepWork
    at: float
    """UTC epoch seconds of the step's end."""
    began_s: float
    """Seconds from the request of the run to the start of the step."""
    seconds: float
    marks: tuple[tuple[float, float], ...] = ()
    """Pairs of seconds since the step's start and the share of work done by then."""
    is_whole: bool = True
    """True if the step did all work without interruption."""
    others: float | None = None
    """Share of the machine's CPUs used by other programs meanwhile; None = unknown."""

    def __post_init__(self) -> None:
        shares = [share for _, share in self.marks]
        numbers = [self.at, self.began_s, self.seconds, self.others or 0.0, *(seconds for seconds, _ in self.marks)]
        numbers += [self.work.size, self.work.amount, self.work.fixed_s]
        if not all(0 <= one < MOST for one in numbers) or not all(0 <= one <= 1 for one in shares):
            raise ValueError(f"{self.work.step}: a time or a share is out of range")

    @property
    def is_crowded(self) -> bool:
        return self.others is not None and self.others > CROWDED


def estimate(request: EstimateRequest, past: Iterable[StepTime] = ()) -> Estimate:
    """Estimate each step from measured times, else from the table; no steps if any step is unknown."""
    known, found = list(past), []
    for work in request.steps:
        one = expect(known, _by_table(work, request.machine))
        if one is None:
            return Estimate(machine=request.machine, steps=())
        found.append(one if one.is_crowded else _beside_others(one, request.machine.others))
    return Estimate(machine=request.machine, steps=tuple(found))


def _by_table(work: StepWork, machine: MachineKind) -> StepWork:
    """Return the work with a table-based guess if the step has an amount and the machine a known speed."""
    if work.guess_s is not None or not work.amount or not machine.flops_per_s:
        return work
    return replace(work, guess_s=work.fixed_s + work.amount / machine.flops_per_s)


def _beside_others(one: Expected, share: float) -> Expected:
    """Return the estimate for a machine with a `share` of CPUs used by other processes.

    Threads of all processes share the CPUs evenly. With N threads of the step and share * N other threads on N CPUs,
    the step gets N / (N + share * N) = 1 / (1 + share) of the CPU time.
    """
    slower = 1 + share
    return replace(one, seconds=one.seconds * slower, high=one.high * slower, fixed_s=one.fixed_s * slower)


def expect(past: Iterable[StepTime], work: StepWork) -> Expected | None:
    """Return the forecast of `work` from the most similar records, else from the work's guess; None without either."""
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
    """Return whether a record predicts a step with other settings better than the table of speeds.

    A toy run of a second or a busy machine would turn minutes into hours when extrapolated.
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
        step=work.step,
        seconds=seconds,
        low=inner[0] / spread,
        high=inner[-1] * spread,
        fixed_s=min(fixed_s, seconds),
        source=source,
        times=len(totals),
        is_crowded=newest[-1][0].is_crowded,
    )


def predicted(one: StepTime, work: StepWork) -> tuple[float, float] | None:
    """Return the seconds of `work` by one record and the constant part; None for too short an observation."""
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
    """Return the records with the nearest model size, since small models use a machine less well than large ones."""

    def distance(one: StepTime) -> float:
        if not one.work.size or not work.size:
            return 0.0
        return abs(math.log(one.work.size / work.size))

    least = min(map(distance, records), default=0.0)
    return [one for one in records if distance(one) <= least + 1e-9]


def total(found: Iterable[Expected]) -> tuple[float, float, float]:
    """Return the sums of the low, expected and high times."""
    sums = [math.fsum(each) for each in zip(*(one.range_s for one in found), strict=True)] or [0.0, 0.0, 0.0]
    return sums[0], sums[1], sums[2]


def words(found: Sequence[Expected], where: str = "") -> str:
    """Return the evidence for an estimate, as `measured 3 times` or `from a table`. `where`: place, in words."""
    steps, heavy = _steps(found), _heavy(_steps(found))
    if all(one.source == GUESS for one in heavy):
        return "from a table"
    crowd = f"{where}, while the machine was busy" if any(one.is_crowded for one in heavy) else where
    if all(one.source == SAME for one in heavy):
        times = min(one.times for one in heavy)
        return f"measured {'once' if times == 1 else f'{times} times'}{crowd}"
    exact = sum(one.source == SAME for one in steps)
    if exact:
        return f"measured for {exact} of {len(steps)} steps, estimated for the others{crowd}"
    return f"estimated from other runs{crowd}"


def evidence(found: Estimate) -> str:
    """Return the evidence for an estimate, with the kind of machine and the current CPU share of other processes."""
    where = f" on this {'' if found.machine.is_here else 'kind of '}machine" if is_measured(found.steps) else ""
    said = words(found.steps, where)
    if found.machine.others >= LEAST_OTHERS:
        said += f"; other processes use {found.machine.others:.0%} of the CPUs now"
    return said


def is_measured(found: Sequence[Expected]) -> bool:
    """Return whether every long step of the forecast is based on measurements of this kind of machine."""
    return bool(found) and all(one.source != GUESS for one in _heavy(_steps(found)))


def _steps(found: Sequence[Expected]) -> Sequence[Expected]:
    return [one for one in found if one.step != AROUND] or found


def _heavy(steps: Sequence[Expected]) -> Sequence[Expected]:
    whole_s = math.fsum(one.seconds for one in steps)
    return [one for one in steps if one.seconds >= 0.05 * whole_s] or steps


def remaining_s(
    forecast: Sequence[Expected], steps: Sequence[Mapping[str, Any]], now: float, since_s: float
) -> tuple[float, float, float]:
    """Return the low, expected and high remaining seconds of a run.

    `steps` come from the run's progress, `now` is UTC epoch seconds of the machine's clock, and `since_s` counts from
    the request of the run; before the first step starts, `since_s` is the elapsed part of the time around the steps.
    Elapsed step times correct the forecast of later steps, with more weight for forecasts from weaker evidence. The
    pace of the running step gains weight with its progress.
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
    """Return whether a part of the step's time grows with the work, as in training."""
    return one.fixed_s < one.seconds


def _scaled(one: Expected, by: float) -> Expected:
    return replace(one, seconds=one.seconds * by, low=one.low * by, high=one.high * by, fixed_s=one.fixed_s * by)


def _factor(known: Mapping[str, Expected], steps: Sequence[Mapping[str, Any]], now: float, has_work: bool) -> float:
    """Return the ratio of actual to expected step times so far, pulled towards 1 by the trust in the forecast."""
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
    """Return the remaining time of the running step, combined from the observed pace and the forecast."""
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
    since_s = max(0.0, gone_s - _last_s(step))  # since the last progress report
    found = trust * spent_s / share * rest + (1 - trust) * work_s * rest + tail_s
    found = max(_remaining(found + since_s, since_s), (step["record"].get("eta_s") or 0.0) - since_s)
    low, high = expected.low / max(expected.seconds, 1e-9), expected.high / max(expected.seconds, 1e-9)
    doubt = 1 - 0.8 * trust
    return found * (1 - doubt * (1 - low)), found, found * (1 + doubt * (high - 1))


def _remaining(whole_s: float, gone_s: float) -> float:
    """Return the remaining seconds of `whole_s`; for an overdue step, a tenth of the elapsed time."""
    return whole_s - gone_s if whole_s > 1.1 * gone_s else 0.1 * gone_s


def elapsed_s(step: Mapping[str, Any], now: float) -> float:
    """Return the elapsed seconds of a step; 0 before the start."""
    if not step.get("started_at"):
        return 0.0
    return max(0.0, (step.get("ended_at") or now) - step["started_at"])


def share_done(step: Mapping[str, Any]) -> float | None:
    """Return a step's reported share of completed work, 0 to 1, or None without a report."""
    record = step.get("record") or {}
    done, whole = record.get("done"), record.get("total")
    return min(1.0, max(0.0, done / whole)) if done is not None and whole else None


def _pace(step: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return (share of work, seconds) since the step's first mark; None without progress since then."""
    marks, record, done = step.get("marks") or (), step.get("record") or {}, share_done(step)
    if not marks or done is None or not record.get("at") or not step.get("started_at"):
        return None
    share, spent_s = done - marks[0][1], record["at"] - step["started_at"] - marks[0][0]
    return (share, spent_s) if share > 0 and spent_s > 0 else None


def _first_s(step: Mapping[str, Any]) -> float:
    return float(step["marks"][0][0])


def _last_s(step: Mapping[str, Any]) -> float:
    return float(step["record"]["at"] - step["started_at"])
