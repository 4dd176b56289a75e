"""Autoscaler: the number of replicas to start, and the replicas to stop. Pure.

    want = clip(ceil(requests per second / target), least, most)

The rule is SkyServe's with three additions. `want` must differ from the target for delay / 20 s ticks in a row before
the target changes to `want`; from 0 the target changes at once. Only living replicas count, so the same rule replaces
lost replicas. Waiting requests are a second signal beside arriving requests: the larger `want` counts, and an unknown
signal changes nothing. No replica starts beyond the budget, or after three replicas in a row that were never ready.

    Rule, AutoscalerMemory of the last tick, Measurements -> Decision

Source: SkyServe, sky/serve/autoscalers.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from infra.runs.keepers.recovery import REPLICA
from serve.policy.replica_states import LIVE, State
from serve.service import Service

TICK_S = 20
TICK_AT_ZERO_S = 5  # a service without replicas starts faster


@dataclass(frozen=True, kw_only=True)
class Rule:
    least: int
    most: int
    target_qps: float | Mapping[str, float] | None = None  # per replica, or per replica by kind of GPU
    target_waiting: float | None = None  # waiting requests per replica
    up_ticks: int = 15
    down_ticks: int = 60
    extra: int = 0  # replicas beyond the target
    spot: bool = False
    base_on_demand: int = 0  # number of replicas that are never spot
    fills_with_on_demand: bool = False  # True if on-demand replicas replace unready spot replicas


@dataclass(frozen=True)
class AutoscalerMemory:
    """State of the autoscaler between two ticks."""

    target: int
    up: int = 0  # ticks in a row that wanted more
    down: int = 0


@dataclass(frozen=True, kw_only=True)
class NewestReplica:
    """Replica of the newest version."""

    number: int  # later replicas have higher numbers
    state: State
    was_ready: bool = False
    spot: bool = False
    gpu: str = ""  # kind of GPU as in target_qps: A100:1


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements of a tick; None = unknown."""

    qps: float | None  # arriving requests per second, mean over 60 s, refused requests included
    waiting: float | None = None  # waiting requests in engines and gateway, mean over 60 s
    members: Sequence[NewestReplica] = ()
    affordable: int | None = None  # further replicas within the budget; None = no limit


@dataclass(frozen=True, kw_only=True)
class Decision:
    memory: AutoscalerMemory
    start_spot: int = 0
    start_on_demand: int = 0
    stop: tuple[int, ...] = ()
    held: str = ""  # reason why fewer replicas start than wanted
    tick_s: int = TICK_S


def rule_of(service: Service) -> Rule:
    policy, ours = service.policy, service.slipway
    target = policy.target_qps_per_replica
    return Rule(
        least=policy.min_replicas,
        most=policy.most,
        target_qps=target,
        target_waiting=ours.target_queue_per_replica,
        up_ticks=int(policy.upscale_delay_seconds / TICK_S),
        down_ticks=int(policy.downscale_delay_seconds / TICK_S),
        extra=policy.num_overprovision or 0,
        spot=bool(service.file.resources.use_spot),
        base_on_demand=policy.base_ondemand_fallback_replicas or 0,
        fills_with_on_demand=bool(policy.dynamic_ondemand_fallback),
    )


def begin(rule: Rule) -> AutoscalerMemory:
    return AutoscalerMemory(rule.least)


def updated(rule: Rule, memory: AutoscalerMemory, seen: Measurements) -> AutoscalerMemory:
    """Return the state after a change of the rule: the target becomes the wanted number without delay."""
    wanted = want(rule, memory, seen)
    return AutoscalerMemory(_clip(rule, memory.target) if wanted is None else wanted)


def decide(rule: Rule, memory: AutoscalerMemory, seen: Measurements) -> Decision:
    """Return the replicas to start and to stop at a tick."""
    wanted = want(rule, memory, seen)
    return fill(rule, memory if wanted is None else _after(rule, memory, wanted), seen)


def fill(rule: Rule, memory: AutoscalerMemory, seen: Measurements) -> Decision:
    """Return the replicas to start and to stop for the current target, between ticks."""
    final = memory.target + rule.extra
    alive = [one for one in seen.members if one.state.is_alive]
    spots, others = _mix(rule, final, alive)
    start_spot = max(0, spots - sum(one.spot for one in alive))
    start_others = max(0, others - sum(not one.spot for one in alive))
    stop = (*_victims(alive, True, spots), *_victims(alive, False, others))
    most, held = _admitted(start_spot + start_others, seen)
    # On-demand replicas are more reliable, so a small budget pays for on-demand replicas first.
    start_others = min(start_others, most)
    start_spot = min(start_spot, most - start_others)
    tick_s = TICK_S if final else TICK_AT_ZERO_S
    return Decision(
        memory=memory, start_spot=start_spot, start_on_demand=start_others, stop=stop, held=held, tick_s=tick_s
    )


def want(rule: Rule, memory: AutoscalerMemory, seen: Measurements) -> int | None:
    """Return the wanted number of replicas, between least and most; None when every signal is unknown."""
    signals = []
    if rule.target_qps is not None:
        signals.append(None if seen.qps is None else _for_requests(rule.target_qps, seen.qps, seen.members))
    if rule.target_waiting is not None:
        signals.append(None if seen.waiting is None else math.ceil(seen.waiting / rule.target_waiting))
    known = [one for one in signals if one is not None]
    if not signals:
        return rule.least
    if not known:
        return None
    wanted = _clip(rule, max(known))
    # An unknown signal might have wanted more, so the number may grow but not shrink.
    return max(wanted, memory.target) if len(known) < len(signals) else wanted


def _clip(rule: Rule, wanted: int) -> int:
    return max(rule.least, min(rule.most, wanted))


def _for_requests(target: float | Mapping[str, float], qps: float, members: Iterable[NewestReplica]) -> int:
    if not isinstance(target, Mapping):
        return math.ceil(qps / target)
    # SkyServe's rule for replicas of different GPUs, except for two points: only living replicas count, and without any
    # replica the number grows by the arriving requests.
    most = max(target.values())
    alive = [one for one in members if one.state.is_alive]
    able = [one for one in alive if one.state in (State.READY, State.STARTING, State.PROVISIONING)]
    capacity = sum(_of_gpu(target, one.gpu) for one in able)
    if qps >= capacity:
        return len(alive) + math.ceil((qps - capacity) / most)
    ready = sorted((_of_gpu(target, one.gpu) for one in alive if one.state is State.READY), reverse=True) or [most]
    total = 0.0
    for number, one in enumerate(ready, 1):
        total += one
        if total > qps:
            return number
    return len(ready)


def _of_gpu(target: Mapping[str, float], gpu: str) -> float:
    """Return the target of `A100:1`, else of `A100`, else the smallest target."""
    return target.get(gpu, target.get(gpu.partition(":")[0], min(target.values())))


def _after(rule: Rule, memory: AutoscalerMemory, wanted: int) -> AutoscalerMemory:
    """Return the state after a tick, with the new target at the end of the delay."""
    if memory.target == 0:
        return replace(memory, target=wanted)
    if wanted > memory.target:
        up = memory.up + 1
        return AutoscalerMemory(wanted) if up >= rule.up_ticks else AutoscalerMemory(memory.target, up=up)
    if wanted < memory.target:
        down = memory.down + 1
        return AutoscalerMemory(wanted) if down >= rule.down_ticks else AutoscalerMemory(memory.target, down=down)
    return AutoscalerMemory(memory.target)


def _mix(rule: Rule, final: int, alive: Iterable[NewestReplica]) -> tuple[int, int]:
    """Return the numbers of spot and on-demand replicas that make up `final`.

    On-demand replicas fill the gap until spot replicas are ready, and then stop.
    """
    if not rule.spot:
        return 0, final
    base = min(rule.base_on_demand, final)
    spots, others = final - base, base
    if rule.fills_with_on_demand:
        ready = sum(one.spot and one.state is State.READY for one in alive)
        others += max(0, spots - ready)
    return spots, min(others, max(base, final - rule.extra))  # no on-demand replica for the surplus


def _victims(alive: Iterable[NewestReplica], spot: bool, keep: int) -> tuple[int, ...]:
    """Return the numbers of the replicas to stop: the furthest from ready first, among equals the youngest."""
    kind = [one for one in alive if one.spot is spot]
    kind.sort(key=lambda one: (LIVE.index(one.state), -one.number))
    return tuple(one.number for one in kind[: max(0, len(kind) - keep)])


def _admitted(wanted: int, seen: Measurements) -> tuple[int, str]:
    """Return the number of replicas that may start, at most `wanted`, and the reason for a lower number."""
    if not wanted:
        return 0, ""
    failures, unproven = _never_ready(seen.members)
    most = REPLICA.retries.most
    if failures >= most:
        return 0, f"{failures} replicas in a row were never ready; see the logs of the replicas"
    if failures:  # at most three replicas are spent on the experiment
        may = max(0, most - failures - unproven)
        if may < wanted:
            return _afforded(
                may, seen, f"{failures} replicas in a row were never ready; {unproven} more replicas are being tried"
            )
    return _afforded(wanted, seen, "")


def _afforded(wanted: int, seen: Measurements, held: str) -> tuple[int, str]:
    if seen.affordable is not None and seen.affordable < wanted:
        return max(0, seen.affordable), f"the budget allows {max(0, seen.affordable)} more"
    return wanted, held


def _never_ready(members: Iterable[NewestReplica]) -> tuple[int, int]:
    """Return the numbers of failed and of living replicas since the last replica that was ever ready."""
    failures = unproven = 0
    for one in sorted(members, key=lambda one: -one.number):
        if one.was_ready:
            break
        failures += one.state.is_failed
        unproven += one.state.is_alive
    return failures, unproven
