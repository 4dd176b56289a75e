"""The choice of a replica for the next request: the pure part, under any order of events."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import RequestRefused
from serve.gateway.routing import Fleet, RequestOutcome, RetryBudget, Target
from serve.gateway.wait_queue import WaitQueue
from serve.gateway.window import Window
from tests import seeds

CAP = 3
LIMITS = GatewayLimits(
    max_in_flight_per_replica=CAP, eject_after=2, eject_s=10, eject_most_s=40, slow_start_s=5, stall_s=8
)


def replica(number: int, generation: int = 0) -> Target:
    """All generations of a number have one address."""
    return Target(replica_id=f"r{number}.{generation}", url=f"http://127.0.0.1:{8000 + number}")


class Churn(RuleBasedStateMachine):
    """Requests begin and end in any order while replicas come and go: the counts must equal counts kept by hand."""

    def __init__(self):
        super().__init__()
        self.fleet, self.now = Fleet(LIMITS), 0.0
        self.listed: list[Target] = []
        self.open = []

    @rule(who=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), unique_by=lambda one: one[0]))
    def replace(self, who):
        self.listed = [replica(*one) for one in who]
        self.fleet.replace(self.listed, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 11.0, 100.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(affinity=st.sampled_from([b"", b"a", b"b"]), other=st.booleans())
    def take(self, affinity, other):
        tried = {self.open[-1].slot} if other and self.open else set()
        assignment = self.fleet.assign(self.now, tried, affinity)
        counts = self.counts()
        room = [one for one in self.listed if counts[one] < CAP and one not in {slot.replica for slot in tried}]
        if assignment is None:
            assert not room
        else:
            assert assignment.replica in room
            self.open.append(assignment)

    @rule(which=st.integers(0, 50), outcome=st.sampled_from(RequestOutcome), again=st.booleans())
    def release(self, which, outcome, again):
        if self.open:
            assignment = self.open.pop(which % len(self.open))
            self.fleet.release(assignment, outcome, self.now)
            if again:
                self.fleet.release(assignment, outcome, self.now)

    def counts(self):
        return Counter(assignment.replica for assignment in self.open)

    @invariant()
    def the_counts_are_those_of_the_book(self):
        counts = self.counts()
        assert list(self.fleet.slots) == self.listed
        for one in {*self.listed, *counts, replica(0), replica(1, 1)}:
            assert self.fleet.in_flight(one) == counts[one]
        assert set(self.fleet.leaving) == set(counts) - set(self.listed)


Churn.TestCase.settings = settings(max_examples=seeds.examples(20, 60), stateful_step_count=40)
TestChurn = Churn.TestCase


def fleet_of(count: int, limits: GatewayLimits = LIMITS, now: float = 0.0) -> Fleet:
    fleet = Fleet(limits)
    fleet.replace([replica(number) for number in range(count)], now)
    return fleet


def test_reused_address_inherits_no_state():
    fleet = fleet_of(1)
    ghost = fleet.assign(0.0)
    fleet.replace([replica(0, 1)], 1.0)
    assert (fleet.in_flight(replica(0)), fleet.in_flight(replica(0, 1))) == (1, 0)
    fleet.release(ghost, RequestOutcome.FAILED, 2.0)
    assert fleet.slots[replica(0, 1)].failures == 0 and not fleet.leaving


def test_two_replicas_with_one_id_are_refused_without_a_change():
    fleet = fleet_of(2)
    with pytest.raises(ValueError, match="the same id"):
        fleet.replace([Target(replica_id="a", url="http://x"), Target(replica_id="a", url="http://y")], 0.0)
    assert len(fleet.slots) == 2


def test_equal_replicas_alternate_and_the_least_loaded_is_first():
    fleet = fleet_of(3)
    assignments = [fleet.assign(100.0) for _ in range(6)]
    assert sorted(Counter(one.replica.replica_id for one in assignments).values()) == [2, 2, 2]
    fleet.release(assignments[4], RequestOutcome.SERVED, 101.0)
    assert fleet.assign(101.0).replica == assignments[4].replica


def test_consecutive_failures_remove_a_replica_for_longer_each_time_until_a_trial_succeeds():
    fleet = fleet_of(2)
    ill, well = fleet.slots.values()

    def fail(now):
        assignment = fleet.assign(now, tried=[well])
        fleet.release(assignment, RequestOutcome.FAILED, now)
        fleet.record_failures([assignment.slot], now)  # A second replica has served the request.
        return assignment.is_trial

    assert [fail(0.0), fail(1.0)] == [False, False] and ill.ejected_until == 11.0
    assert {fleet.assign(5.0).slot for _ in range(CAP)} == {well}
    for now, out_s in ((11.0, 20), (31.0, 40), (71.0, 40)):  # Doubled, up to the maximum.
        assert fail(now) and ill.ejected_until == now + out_s
    trial = fleet.assign(111.0)
    assert trial.slot is ill and trial.is_trial
    fleet.release(trial, RequestOutcome.SERVED, 112.0)
    assert ill.ejected_until is None and ill.weight(112.0, LIMITS) < 1 == ill.weight(117.0, LIMITS)


SERVED, LOST, FAILED, NEITHER = RequestOutcome


@pytest.mark.parametrize(
    ("outcomes", "counts", "is_out"),
    [
        ([FAILED] * 50, (0, 0, 50), False),  # One client can cause such failures.
        ([FAILED, SERVED, FAILED], (0, 0, 1), False),
        ([FAILED, NEITHER, FAILED], (0, 0, 2), False),  # A client's errors do not hide failures.
        ([LOST], (1, 1, 0), False),
        ([LOST, LOST], (2, 2, 0), True),
        ([LOST, SERVED, LOST], (1, 1, 0), False),
        ([LOST, FAILED, LOST], (2, 1, 1), True),
        ([NEITHER] * 50, (0, 0, 0), False),
    ],
)
def test_end_of_a_request_updates_the_health_of_its_replica(outcomes, counts, is_out):
    fleet = fleet_of(1)
    for outcome in outcomes:
        fleet.release(fleet.assign(0.0), outcome, 0.0)
    (slot,) = fleet.slots.values()
    assert (slot.failures, slot.lost, slot.errors) == counts
    assert (slot.ejected_until is not None) is is_out


def test_trial_that_fails_everywhere_is_repeated():
    fleet = fleet_of(1)
    for _ in range(2):
        fleet.release(fleet.assign(0.0), LOST, 0.0)
    for _ in range(3):
        trial = fleet.assign(20.0)
        assert trial.is_trial
        fleet.release(trial, FAILED, 20.0)
    fleet.release(fleet.assign(20.0), SERVED, 20.0)
    assert next(iter(fleet.slots.values())).ejected_until is None


def test_all_replicas_are_asked_when_all_are_out():
    fleet = fleet_of(2)
    for slot in fleet.slots.values():
        for _ in range(2):
            fleet.release(
                fleet.assign(0.0, tried=[one for one in fleet.slots.values() if one is not slot]),
                RequestOutcome.LOST,
                0.0,
            )
    assert all(slot.ejected_until for slot in fleet.slots.values())
    assert fleet.assign(1.0) is not None


def test_new_replica_ramps_up_slowly():
    fleet = fleet_of(1, GatewayLimits(slow_start_s=10))
    fleet.replace([replica(0), replica(1)], 100.0)
    shares = []
    for now in (100.5, 105.0, 111.0):
        assignments = [fleet.assign(now) for _ in range(60)]
        shares.append(sum(one.replica == replica(1) for one in assignments))
        for assignment in assignments:
            fleet.release(assignment, RequestOutcome.SERVED, now)
    assert shares[0] <= 6 and shares[0] < shares[1] < shares[2] == 30


def test_silent_replica_is_asked_last():
    fleet = fleet_of(2)
    mute = fleet.assign(0.0).slot
    other = fleet.assign(0.0)
    fleet.release(other, RequestOutcome.SERVED, 1.0)
    for now in (9.0, 9.1, 9.2):
        assert fleet.assign(now).slot is not mute
    assert fleet.assign(9.3).slot is mute  # The other is full.


def replica_for(count: int, word: bytes) -> Target:
    """Return the replica for a prompt in an idle fleet."""
    return fleet_of(count).assign(100.0, (), word).replica


def test_prompts_with_a_common_prefix_share_a_replica_until_the_load_is_unfair():
    words = [bytes([one]) for one in range(40)]
    homes = {word: replica_for(4, word) for word in words}
    assert homes == {word: replica_for(4, word) for word in words} and len(set(homes.values())) == 4
    # After the removal of the last replica, prompts of other replicas stay on their replica.
    assert all(replica_for(3, word) == homes[word] for word in words if homes[word] != replica(3))
    fleet = fleet_of(4, GatewayLimits(max_in_flight_per_replica=1000, slow_start_s=0.001))
    for _ in range(400):
        fleet.assign(1.0, (), b"a")
    assert max(slot.in_flight for slot in fleet.slots.values()) <= 1.25 * 100 + 1


def test_retries_are_earned():
    budget = RetryBudget(GatewayLimits(retry_floor=2, retry_ratio=0.25))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(5):
        budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]


def test_minute_counter_covers_a_minute():
    window = Window()
    for second in range(100, 160):
        window.add(second + 0.5)
    assert window.per_second(159.9) == 1.0
    assert window.per_second(189.0) == 0.5
    assert window.per_second(10_000.0) == 0.0
    window.add(10_000.0)
    assert window.per_second(10_000.9) == pytest.approx(1 / 60)


@pytest.mark.slow
def test_minute_counter_ends_at_the_current_second():
    chance = random.Random(3)
    window, arrivals, now = Window(), [], 1000.0
    for _ in range(3000):
        now += chance.expovariate(10)
        window.add(now)
        arrivals.append(now)
        exact = sum(now - 60 <= one for one in arrivals[-2000:])
        unsure = sum(now - 61 <= one < now - 59 for one in arrivals[-2000:])
        assert abs(window.per_second(now) * 60 - exact) <= unsure + 1e-6


def test_queue_is_served_in_order_and_a_late_turn_is_returned():
    async def main():
        turns = WaitQueue(GatewayLimits(max_in_flight_per_replica=1, queue_s=30), lambda: 0.0)
        turns.replace([replica(0)])
        first = turns.assign(b"")
        waiting = [asyncio.ensure_future(turns.wait(b"")) for _ in range(4)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        order = []
        assignment = first
        for number in (0, 2, 3):
            turns.release(assignment, RequestOutcome.SERVED)
            assignment = await waiting[number]
            order.append(number)
        last = asyncio.ensure_future(turns.wait(b""))
        await asyncio.sleep(0)
        turns.release(assignment, RequestOutcome.SERVED)  # The request has its turn now,
        last.cancel()  # and leaves at the same moment.
        with pytest.raises(asyncio.CancelledError):
            await last
        assert turns.fleet.in_flight(replica(0)) == 0 and not turns.waiting
        assert turns.assign(b"").replica == replica(0)

    asyncio.run(main())


def test_waiting_request_goes_to_the_next_new_replica():
    async def main():
        turns = WaitQueue(GatewayLimits(hold_s=30), lambda: 0.0)
        held = asyncio.ensure_future(turns.wait(b""))
        await asyncio.sleep(0)
        turns.replace([replica(1)])
        assert (await held).replica == replica(1)
        with pytest.raises(RequestRefused, match="no replica is ready"):
            await WaitQueue(GatewayLimits(), lambda: 0.0).wait(b"")

    asyncio.run(main())


@pytest.mark.parametrize("count", [3, 4, 5])
def test_client_with_two_parallel_requests_reaches_all_replicas_alike(count):
    fleet = Fleet(GatewayLimits(slow_start_s=0.001))
    fleet.replace([replica(number) for number in range(count)], 0.0)
    chosen = []
    for _ in range(6 * count):
        assignments = [fleet.assign(10.0) for _ in range(2)]
        for assignment in assignments:
            chosen.append(assignment.replica)
            fleet.release(assignment, RequestOutcome.SERVED, 10.0)
    assert {chosen.count(one) for one in fleet.slots} == {12}
