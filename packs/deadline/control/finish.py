"""A launch with a time or a sum of money: the limit, the end of the schedule, and the work after each phase.

flags -> `with_limits`: --ttl or --spend-limit
flags -> `ending_at_limit`: configuration of each named phase
plan -> `with_later_work`: the work after each phase, as a variable of the job
"""

import json
import time
from dataclasses import replace
from datetime import datetime, timedelta

from flows.planning.estimates import phases_of, seconds_beside_steps, text_bytes_of
from flows.specs.launch import LaunchSpec
from flows.specs.work import PhaseFlags
from infra.agent.limits import FINISH_BY, hard_limit_s
from infra.errors import UsageError
from infra.records import Offer, Plan
from infra.selection.preflight import amount_of, refuse_money_flags
from infra.settings import Settings
from infra.units import about
from packs.deadline.records.job_variables import FEW, LIMIT, VARIABLE
from trainer.config import PhaseConfig
from trainer.plan.estimates import operations


def read_time(text: str, now: datetime | None = None) -> datetime:
    """Return the next `16:00` of this machine's time zone, or `2026-12-01 16:00`. Raises UsageError.

    now: the local time, without a zone.
    """
    now = now or datetime.now()
    try:
        if len(text) <= len("16:00"):
            clock = datetime.strptime(text, "%H:%M")
            found = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
            # Add the zone last, because the UTC offset of the next day may differ.
            return (found if found > now else found + timedelta(days=1)).astimezone()
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise UsageError(
            f"--finish-by {text}: expected a time such as 16:00 or '2026-12-01 16:00', in quotes in a file"
        ) from None


def refuse_money(spec: LaunchSpec, finish_within: str, settings: Settings) -> None:
    """Raise UsageError for --finish-within on a machine without costs."""
    others, instead = {"gpu": spec.gpu, "num-gpus": spec.num_gpus}, ". For a time: --finish-by 16:00"
    refuse_money_flags(settings, {"finish-within": finish_within}, others, instead=instead)


def with_limits(spec: LaunchSpec, finish_by: str, finish_within: str) -> LaunchSpec:
    """Return the flags of a launch with these limits. Raises UsageError."""
    if finish_within:
        if spec.spend_limit:
            raise UsageError("--finish-within sets the spend limit; leave --spend-limit out")
        # Check here, or the error would name --spend-limit, which the user has not typed.
        meaning = f"{amount_of('finish-within', finish_within) / 1e6:.2f}"
        limits_from = {**spec.limits_from, "spend_limit": ("finish_within", meaning)}
        spec = replace(spec, spend_limit=finish_within, typed=spec.typed | {"spend_limit"}, limits_from=limits_from)
    if finish_by:
        if spec.ttl:
            raise UsageError("--finish-by sets the time limit; leave --ttl out")
        by = read_time(finish_by)
        left_s = by.timestamp() - time.time()
        if left_s < 1:
            raise UsageError(f"--finish-by {finish_by}: this time has passed")
        limits_from = {**spec.limits_from, "ttl": ("finish_by", by.isoformat())}
        spec = replace(spec, ttl=f"{left_s:.0f}s", limits_from=limits_from)
    return spec


def ending_at_limit(asked: PhaseFlags, config: PhaseConfig) -> PhaseConfig:
    """Return the configuration of a phase whose number of steps may shrink during training."""
    return replace(config, schedule=replace(config.schedule, end=LIMIT)) if config.trains else config


def with_later_work(plan: Plan, finish_by: str, finish_within: str, offer: Offer | None) -> Plan:
    """Return the plan with the operations after each phase, and a note.

    offer: the rented machine, if known.
    """
    if plan.job is None:
        return plan
    machine, text_bytes = plan.estimate.machine.name if plan.estimate else "", text_bytes_of(plan.job.steps)
    phases = phases_of(plan.job.steps)
    ends = [_end_s(one, machine, text_bytes) for one in phases]
    later = {
        one.phase: (*_relative(phases[place + 1 :], one), ends[place], sum(ends[place + 1 :]))
        for place, one in enumerate(phases)
        if one.trains
    }
    by = [f"by {read_time(finish_by):%Y-%m-%d %H:%M}"] if finish_by else []
    by += [f"within {finish_within.lstrip('$')} USD"] if finish_within else []
    note = (
        f"to finish {' and '.join(by)}, the trainer compares its pace with the limit after 20 steps and later. If the "
        "planned steps do not fit, the trainer ends the schedule earlier, with a complete decay of the learning rate"
    )
    rate = offer.micro_usd_per_hour if offer else 0  # The limits of a job apply to each node.
    notes, limit_s = [note], hard_limit_s(replace(plan.job.limits, micro_usd_per_hour=rate))
    whole_s = sum(one.seconds for one in plan.displayed_estimate.steps) if plan.displayed_estimate else 0.0
    if limit_s is not None and limit_s < FEW * whole_s:
        notes.append(
            f"the limit is {limit_s / whole_s:.1%} of the expected time, {about(whole_s)}: the training makes few of "
            "the planned steps, and later launches with the same flags take this model. Use a smaller profile, or a "
            "higher limit"
        )
    environ = {**plan.job.environ, VARIABLE: json.dumps(later)}
    if finish_by:  # a rehearsal runs faster than the time of day
        now = time.time()
        environ[FINISH_BY] = f"{now + (read_time(finish_by).timestamp() - now) / plan.job.clock_scale:.1f}"
    job = replace(plan.job, environ=environ)
    return replace(plan, job=job, notes=(*plan.notes, *notes))


def _end_s(phase: PhaseConfig, machine: str, text_bytes: int) -> float:
    """Return the seconds of a phase after the last step, as in the forecast of the plan."""
    beside = seconds_beside_steps(phase, machine, text_bytes)
    return beside.get("saves", 0.0) + beside.get("evaluation", 0.0)


def _relative(later: list[PhaseConfig], one: PhaseConfig) -> tuple[float, float, int]:
    """Return the operations of changing and of fixed phases, relative to `one`, and the number of phases."""
    phases = [other for other in later if other.trains]
    changing = sum(operations(other) for other in phases if other.schedule.end == LIMIT)
    fixed = sum(map(operations, phases)) - changing
    return changing / operations(one), fixed / operations(one), len(phases)
