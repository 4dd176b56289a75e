"""The number of replicas: against a simulated clock, with the numbers of the shipped service."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve import service
from serve.policy import autoscaler
from serve.policy.autoscaler import AutoscalerMemory, Measurements, NewestReplica, Rule
from serve.policy.replica_states import State
from tests.serve.scripted_engine import ROOT

SHIPPED = service.load(Path(ROOT) / "serve" / "service.yaml")
RULE = dataclasses.replace(autoscaler.rule_of(SHIPPED), target_waiting=None)


@dataclasses.dataclass
class World:
    """A service with immediately ready replicas. `rate`: requests per second at a time."""

    rule: Rule
    rate: Callable[[float], float]
    now: float = 0.0
    numbers: int = 0
    members: tuple[NewestReplica, ...] = ()
    history: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.memory = autoscaler.begin(self.rule)

    def qps(self) -> float:
        """Return the rate of the last minute, as counted by the gateway."""
        return sum(self.rate(self.now - second) for second in range(1, 61)) / 60

    def tick(self, **seen) -> autoscaler.Decision:
        decision = autoscaler.decide(
            self.rule, self.memory, Measurements(**{"qps": self.qps(), "members": self.members, **seen})
        )
        self.memory = decision.memory
        stay = [one for one in self.members if one.number not in decision.stop]
        for spot, count in ((True, decision.start_spot), (False, decision.start_on_demand)):
            for _ in range(count):
                self.numbers += 1
                stay.append(NewestReplica(number=self.numbers, state=State.READY, was_ready=True, spot=spot))
        self.members = tuple(stay)
        self.history.append((self.now, len(self.members)))
        self.now += decision.tick_s
        return decision

    def until(self, end: float) -> "World":
        while self.now <= end:
            self.tick()
        return self

    def at(self, when: float) -> int:
        return [count for now, count in self.history if now <= when][-1]


def test_shipped_file_has_the_documented_numbers():
    assert (RULE.least, RULE.most, RULE.target_qps, RULE.up_ticks, RULE.down_ticks) == (3, 20, 5.0, 3, 15)
    assert RULE.spot


def test_load_of_26_becomes_six_replicas_after_60_s_and_no_load_becomes_three_after_300_s():
    steady = World(RULE, lambda now: 26.0 if -60 <= now < 1000 else 0.0).until(400)
    assert (steady.at(0), steady.at(20), steady.at(40)) == (3, 3, 6)  # The third tick in a row that wants six.
    steady.until(1800)
    # The minute of the mean runs out first: the last tick that wants six is at 1040, less than six but more than three
    # is wanted at 1020 already, and the fifteenth tick that wants less comes 300 s after the first.
    fell = next(now for now, count in steady.history if now > 1000 and count < 6)
    assert 1000 + 280 <= fell <= 1000 + 320 and steady.at(1800) == 3


def test_minute_of_the_mean_is_part_of_the_wait_from_an_idle_start():
    began = World(RULE, lambda now: 26.0 if now >= 0 else 0.0).until(200)
    assert [began.at(when) for when in (0, 20, 40, 60, 80, 100)] == [3, 3, 3, 3, 6, 6]


def test_target_never_exceeds_the_maximum():
    flood = World(RULE, lambda now: 10_000.0).until(2000)
    assert max(count for _, count in flood.history) == 20


@settings(max_examples=60)
@given(st.lists(st.floats(0, 500), min_size=5, max_size=60), st.integers(0, 3))
def test_target_stays_between_minimum_and_maximum_under_any_load(rates, extra):
    rule = dataclasses.replace(RULE, extra=extra)
    world = World(rule, lambda now: rates[int(now // 60) % len(rates)] if now >= 0 else 0.0).until(60 * len(rates))
    assert all(rule.least + extra <= count <= rule.most + extra for _, count in world.history)


def test_one_opposite_tick_restarts_the_wait():
    memory = AutoscalerMemory(3)
    for qps in (26, 26, 10, 26, 26):
        memory = autoscaler.decide(RULE, memory, Measurements(qps=qps)).memory
    assert (memory.target, memory.up) == (3, 2)
    # The target jumps to the latest demand.
    assert autoscaler.decide(RULE, memory, Measurements(qps=61)).memory.target == 13


def test_waiting_requests_count_like_arriving_requests():
    rule = dataclasses.replace(RULE, target_waiting=8.0, up_ticks=1)
    assert autoscaler.decide(rule, AutoscalerMemory(3), Measurements(qps=1, waiting=60)).memory.target == 8
    assert autoscaler.decide(rule, AutoscalerMemory(3), Measurements(qps=99, waiting=0)).memory.target == 20


def test_unknown_load_keeps_the_target_and_replaces_dead_replicas():
    seen = Measurements(qps=None, members=[NewestReplica(number=1, state=State.READY, spot=True)])
    decision = autoscaler.decide(RULE, AutoscalerMemory(6, up=2), seen)
    assert decision.memory == AutoscalerMemory(6, up=2) and decision.start_spot == 5
    rule = dataclasses.replace(RULE, target_waiting=8.0, down_ticks=1, up_ticks=1)
    # The target may grow, not shrink.
    assert autoscaler.decide(rule, AutoscalerMemory(6), Measurements(qps=None, waiting=0)).memory.target == 6
    assert autoscaler.decide(rule, AutoscalerMemory(6), Measurements(qps=None, waiting=80)).memory.target == 10


def test_first_request_wakes_a_service_from_zero_with_faster_ticks():
    rule = dataclasses.replace(RULE, least=0)
    world = World(rule, lambda now: 1 / 60 if 100 <= now < 101 else 0.0)
    world.memory = AutoscalerMemory(0)
    world.until(110)
    assert [now for now, count in world.history if count] and world.at(100) == 0 and world.at(110) == 1
    assert world.history[1][0] - world.history[0][0] == 5
    world.until(800)
    assert world.at(800) == 0


def test_budget_is_never_exceeded_and_ends_no_running_replica():
    alive = [NewestReplica(number=one, state=State.READY, spot=True) for one in range(1, 4)]
    decision = autoscaler.decide(RULE, AutoscalerMemory(9), Measurements(qps=45, members=alive, affordable=2))
    assert (decision.start_spot, decision.stop, decision.held) == (2, (), "the budget allows 2 more")
    broke = autoscaler.decide(RULE, AutoscalerMemory(9), Measurements(qps=45, members=alive, affordable=-1))
    assert (broke.start_spot, broke.stop) == (0, ())


def crashing(at_once: bool, least: int) -> int:
    """Return the launches of a service with crashing replicas."""
    rule = dataclasses.replace(RULE, least=least, target_qps=None)
    memory, members, launches = autoscaler.begin(rule), [], 0
    for _ in range(200):
        decision = autoscaler.decide(rule, memory, Measurements(qps=0, members=members))
        memory = decision.memory
        for _ in range(decision.start_spot):
            launches += 1
            members.append(NewestReplica(number=launches, state=State.STARTING, spot=True))
        for place, one in enumerate(members):
            if one.state is State.STARTING:
                members[place] = dataclasses.replace(one, state=State.FAILED)
                if not at_once:
                    break
    assert "never ready" in decision.held
    return launches


@pytest.mark.parametrize(("at_once", "least"), [(True, 1), (True, 3), (False, 1), (False, 2), (False, 3)])
def test_always_crashing_service_is_launched_three_times(at_once, least):
    assert crashing(at_once, least) == 3


def test_replica_that_was_ready_is_always_replaced():
    dead = [NewestReplica(number=n, state=State.FAILED_PROBING, was_ready=True, spot=True) for n in range(1, 9)]
    assert autoscaler.decide(RULE, AutoscalerMemory(3), Measurements(qps=0, members=dead)).start_spot == 3
    gone = [NewestReplica(number=n, state=State.PREEMPTED, spot=True) for n in range(1, 9)]
    assert autoscaler.decide(RULE, AutoscalerMemory(3), Measurements(qps=0, members=gone)).start_spot == 3


def test_least_ready_replica_is_ended_first_then_the_youngest():
    states = [State.READY, State.STARTING, State.READY, State.NOT_READY, State.PENDING, State.READY]
    alive = [NewestReplica(number=number, state=state, spot=True) for number, state in enumerate(states, 1)]
    decision = autoscaler.decide(
        dataclasses.replace(RULE, least=1), AutoscalerMemory(1), Measurements(qps=0, members=alive)
    )
    assert decision.stop == (5, 2, 4, 6, 3)


def test_on_demand_replicas_stand_in_until_spot_is_ready():
    rule = dataclasses.replace(RULE, base_on_demand=1, fills_with_on_demand=True)
    first = autoscaler.decide(rule, AutoscalerMemory(5), Measurements(qps=None))
    assert (first.start_spot, first.start_on_demand) == (4, 5)
    spots = [NewestReplica(number=n, state=State.READY if n < 4 else State.STARTING, spot=True) for n in range(1, 5)]
    others = [NewestReplica(number=n, state=State.READY) for n in range(5, 10)]
    later = autoscaler.decide(rule, AutoscalerMemory(5), Measurements(qps=None, members=[*spots, *others]))
    assert later.stop == (9, 8, 7) and later.start_spot == later.start_on_demand == 0  # One base, one for the gap.


def test_gpus_count_by_their_speed():
    rule = dataclasses.replace(RULE, spot=False, target_qps={"A100:1": 2.0, "H100:1": 5.0}, up_ticks=1, down_ticks=1)
    mixed = [
        NewestReplica(number=n, state=State.READY, gpu=gpu)
        for n, gpu in enumerate(["A100:1", "A100:1", "H100:1", "H100:1"], 1)
    ]
    assert autoscaler.want(rule, AutoscalerMemory(4), Measurements(qps=24, members=mixed)) == 4 + math.ceil(10 / 5)
    assert autoscaler.want(rule, AutoscalerMemory(4), Measurements(qps=9, members=mixed)) == 3  # The minimum: 3.
    # Here the service wakes.
    assert autoscaler.want(dataclasses.replace(rule, least=0), AutoscalerMemory(0), Measurements(qps=0.1)) == 1
    assert (
        autoscaler.want(dataclasses.replace(rule, least=0), AutoscalerMemory(4), Measurements(qps=6, members=mixed))
        == 2
    )


def test_changed_rule_applies_at_once():
    assert autoscaler.updated(
        dataclasses.replace(RULE, most=4), AutoscalerMemory(9, up=2), Measurements(qps=45)
    ) == AutoscalerMemory(4)
    assert autoscaler.updated(
        dataclasses.replace(RULE, most=4), AutoscalerMemory(9), Measurements(qps=None)
    ) == AutoscalerMemory(4)
