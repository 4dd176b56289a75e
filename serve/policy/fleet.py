"""Next actions of a controller: replicas to start and end, and replicas for the gateway. Pure.

    desired state, replicas, load -> FleetPlan

This module only combines `autoscaler` (number of replicas), `update` (from one version to the next) and
`replica_states` (living replicas).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serve.policy import autoscaler, update
from serve.policy.autoscaler import AutoscalerMemory, Rule
from serve.policy.replica_states import ProcessStatus, state_of
from serve.policy.service_state import Member


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load as counted by gateway and engines; None = unknown."""

    qps: float | None = None
    waiting: float | None = None
    affordable: int | None = None
    """Further replicas within the budget."""


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    memory: AutoscalerMemory
    start_spot: int = 0
    start_on_demand: int = 0
    stop: tuple[tuple[int, str], ...] = ()
    """Numbers of replicas to stop, each with the reason."""
    held: str = ""
    tick_s: float = autoscaler.TICK_S


def next_actions(
    mode: str, rule: Rule, memory: AutoscalerMemory, newest: int, members: Sequence[Member], load: Load, is_tick: bool
) -> FleetPlan:
    """Return the next actions.

    `newest`: number of the wanted version. `is_tick`: True if the interval of the last tick has passed.
    """
    alike = [one for one in members if one.version == newest]
    seen = autoscaler.Measurements(
        qps=load.qps, waiting=load.waiting, members=[scaled(one) for one in alike], affordable=load.affordable
    )
    decision = (autoscaler.decide if is_tick else autoscaler.fill)(rule, memory, seen)
    final = decision.memory.target + rule.extra
    old = update.replicas_to_stop(mode, rule.least, final, newest, [_updated(one) for one in members])
    stop = {number: "fewer are wanted" for number in decision.stop}
    stop |= {number: f"version {newest} replaces the replica" for number in old}
    return FleetPlan(
        memory=decision.memory,
        start_spot=decision.start_spot,
        start_on_demand=decision.start_on_demand,
        stop=tuple(stop.items()),
        held=decision.held,
        tick_s=decision.tick_s,
    )


def serving(mode: str, rule: Rule, members: Sequence[Member]) -> tuple[int, ...]:
    """Return the numbers of the replicas that may receive requests."""
    return tuple(sorted(update.serving(mode, rule.least, [_updated(one) for one in members])))


def failed_at(newest: int, members: Sequence[Member]) -> list[float]:
    """Return the times of failures of the newest version since the last ready replica, in UTC epoch seconds."""
    found = []
    for one in sorted(members, key=lambda one: -one.number):
        if one.version == newest and one.facts.first_ready_at is not None:
            break
        if one.version == newest and one.state.is_failed and one.ended_at is not None:
            found.append(one.ended_at)
    return found


def scaled(one: Member) -> autoscaler.NewestReplica:
    """Return a replica for the autoscaler: a failed replica counts as failed even while ending."""
    was_ready, facts = one.facts.first_ready_at is not None, one.facts
    if facts.down in (ProcessStatus.SCHEDULED, ProcessStatus.RUNNING, ProcessStatus.FAILED) and (
        facts.app_failed or facts.is_late
    ):
        facts = replace(facts, down=ProcessStatus.SUCCEEDED)
    return autoscaler.NewestReplica(
        number=one.number, state=state_of(facts), was_ready=was_ready, spot=one.spot, gpu=one.gpu
    )


def _updated(one: Member) -> update.UpdateMember:
    return update.UpdateMember(number=one.number, version=one.version, state=one.state)
