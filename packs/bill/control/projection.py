"""The expected parts of the time and the cost of a plan on a rented machine, before the rental.

    plan, offer, bills of earlier runs -> parts_of_plan -> a row per part; the rows add up to the forecast of the plan

The parts before the work are divided as in the bills of earlier runs at the vendor; without such a run, they are a row.
The rows count the whole work, also where a limit would end the run earlier.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flows.planning.estimates import phases_of, seconds_beside_steps, text_bytes_of
from infra.ledger.journal import Journal
from infra.ledger.op import PLANNED
from infra.market.step_times import AROUND, GUESS, SETUP_S, words
from infra.records import Expected, Offer, Plan
from infra.runs import run_rows
from infra.settings import Settings
from infra.units import count
from packs.bill.control.bill import Bill
from packs.bill.control.pod_time import (
    BOOT,
    CHECKS,
    COMPILE,
    DATA,
    ENVIRONMENT,
    EVALUATION,
    SAVES,
    STEPS,
    SYNC,
    WAIT,
)
from packs.bill.control.sources import bill_of_run, program_part

START = (WAIT, BOOT, CHECKS, SYNC, ENVIRONMENT)
MOST_BILLS = 5  # newest runs at the vendor
MOST_LOOKS = 20  # runs to read for these bills
LEAST_S = 1.0  # shorter parts of a training count as steps


@dataclass(frozen=True)
class ExpectedPart:
    """An expected part of the time of a run. Seconds are on the clock of the vendor."""

    part: str
    """A part of a bill; "" for the sum of all parts of START."""
    step: str
    """The step of a training, else ""."""
    seconds: float
    micro_usd: int
    evidence: str


def parts_of_plan(plan: Plan, offer: Offer, settings: Settings, bills: Sequence[Bill]) -> list[ExpectedPart]:
    """Return the parts of the expected time of a plan on an offer; [] for a plan of unknown length."""
    assert plan.job is not None, "only plans with work are rented for"
    found = plan.displayed_estimate
    if found is None or not found.steps:
        return []
    programs = {step.name: program_part(step) for step in plan.job.steps}
    steps = [one for one in found.steps if one.step != AROUND]
    made = [one for one in steps if programs.get(one.step) == DATA]
    start_s, why = _start_of(plan, settings)
    rows = [*_start(start_s, why, bills), *_data(made)]
    phases = {step.name: phase for step in plan.job.steps for phase in phases_of([step])}
    text_bytes = text_bytes_of(plan.job.steps)
    for one in steps:
        if one.step in phases:
            beside = seconds_beside_steps(phases[one.step], found.machine.name, text_bytes)
            rows += _training(one, beside if one.source == GUESS else {})
        elif one not in made:
            rows.append((_part(programs.get(one.step)), one.step, one.seconds, words([one])))
    rate = offer.micro_usd_per_hour * plan.request.nodes / 3600
    return [ExpectedPart(part, step, seconds, round(seconds * rate), why) for part, step, seconds, why in rows]


def earlier_bills(vendor: str, journal: Journal, settings: Settings) -> list[Bill]:
    """Return bills of the newest ended runs at a vendor with one pod, and with times for BOOT and SYNC."""
    rows = [op for op in journal.ops() if op.vendor == vendor and op.state != PLANNED and not op.service]
    live = {run_rows.run_of(op) for op in rows if op.is_live}
    names = [run for run in dict.fromkeys(run_rows.run_of(op) for op in reversed(rows)) if run not in live]
    bills = (bill_of_run(run, journal, settings, lambda _: None, asks=False) for run in names[:MOST_LOOKS])
    whole = (one for one in bills if one.pods == 1 and all(one.seconds.get(part) for part in (BOOT, SYNC)))
    return [*itertools.islice(whole, MOST_BILLS)]


def _part(program: str | None) -> str:
    """Return the part of a step that is no training."""
    return EVALUATION if program == EVALUATION else STEPS


def _training(one: Expected, beside: Mapping[str, float]) -> Iterator[tuple[str, str, float, str]]:
    """Yield the parts of a training. A measured time is a single part, because a measurement has no parts."""
    shown = {part: seconds for part, seconds in beside.items() if seconds >= LEAST_S}
    for part in (COMPILE, STEPS, SAVES, EVALUATION):
        seconds = one.seconds - sum(shown.values()) if part == STEPS else shown.get(part)
        if seconds is not None:
            yield part, one.step, seconds, words([one])


def _start_of(plan: Plan, settings: Settings) -> tuple[float, str]:
    """Return the seconds before the work, as in `preflight.forecast_of`, and the evidence."""
    around = next((one for one in plan.forecast if one.step == AROUND and one.source != GUESS), None)
    if around is None or settings.rehearsal:  # the displayed times are those of the imitated machine
        return SETUP_S[1], "from a table"
    return around.seconds, words([around])


def _start(start_s: float, why: str, bills: Sequence[Bill]) -> Iterator[tuple[str, str, float, str]]:
    if not bills:
        yield "", "", start_s, why
        return
    sums: Mapping[str, float] = {part: sum(one.seconds.get(part, 0.0) for one in bills) for part in START}
    whole_s = sum(sums.values())
    for part in START:
        if sums[part]:
            yield part, "", start_s * sums[part] / whole_s, f"{why}, divided as in {count(len(bills), 'run')}"


def _data(made: Sequence[Expected]) -> Iterator[tuple[str, str, float, str]]:
    if made:
        yield DATA, "", sum(one.seconds for one in made), words(made)
