"""The state of a replica, and the answering replicas during an update of a service."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.policy import replica_states, update
from serve.policy.replica_states import Facts, ProcessStatus, ServiceState, State
from serve.policy.update import UpdateMember
from serve.service import Probe

UP = Facts(launch=ProcessStatus.SUCCEEDED)
PROBE = Probe(path="/health", initial_delay_seconds=120, consecutive_failure_threshold_timeout=180)
READY = replace(UP, is_ready=True, first_ready_at=5.0)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (Facts(), State.PENDING),
        (Facts(launch=ProcessStatus.RUNNING), State.PROVISIONING),
        (Facts(launch=ProcessStatus.RUNNING, down=ProcessStatus.FAILED), State.FAILED_CLEANUP),
        (Facts(launch=ProcessStatus.INTERRUPTED, down=ProcessStatus.RUNNING), State.SHUTTING_DOWN),
        (UP, State.STARTING),
        (READY, State.READY),
        (replace(READY, is_ready=False), State.NOT_READY),
        (replace(READY, down=ProcessStatus.RUNNING), State.SHUTTING_DOWN),
        (replace(UP, down=ProcessStatus.SUCCEEDED, app_failed=True), State.FAILED),
        (replace(UP, down=ProcessStatus.SUCCEEDED, is_late=True), State.FAILED_INITIAL_DELAY),
        (replace(READY, down=ProcessStatus.SUCCEEDED, is_ready=False), State.FAILED_PROBING),
        (Facts(launch=ProcessStatus.FAILED, down=ProcessStatus.SUCCEEDED), State.FAILED_PROVISION),
        (Facts(launch=ProcessStatus.FAILED), State.FAILED_CLEANUP),
        (replace(READY, down=ProcessStatus.FAILED), State.FAILED_CLEANUP),
        (replace(READY, down=ProcessStatus.RUNNING, preempted=True), State.PREEMPTED),
    ],
)
def test_state_follows_from_the_facts(facts, state):
    assert replica_states.state_of(facts) is state
    assert state.is_alive == (state in replica_states.LIVE)


def probes(facts: Facts, *results: tuple[float, bool]) -> Facts:
    for now, passed in results:
        facts = replica_states.after_probe(facts, passed, now)
    return facts


def test_replica_is_ready_after_two_passes_and_not_ready_after_three_misses():
    once = probes(UP, (1, False), (2, True))
    assert replica_states.state_of(once) is State.STARTING
    twice = probes(once, (3, True))
    assert replica_states.state_of(twice) is State.READY and twice.first_ready_at == 3
    assert replica_states.state_of(probes(twice, (4, False), (5, False))) is State.READY
    gone = probes(twice, (4, False), (5, False), (6, False))
    assert replica_states.state_of(gone) is State.NOT_READY and gone.first_miss_at == 4
    assert replica_states.state_of(probes(gone, (7, True))) is State.NOT_READY
    assert probes(gone, (7, True), (8, True)).first_ready_at == 3


def test_replica_may_use_its_initial_delay_and_no_longer():
    waiting = probes(UP, (10, False), (100, False))
    assert replica_states.with_end_reason(waiting, PROBE, 130) == (waiting, "")
    late, why = replica_states.with_end_reason(waiting, PROBE, 131)
    assert "initial_delay_seconds" in why and "log" in why
    assert replica_states.state_of(replace(late, down=ProcessStatus.SUCCEEDED)) is State.FAILED_INITIAL_DELAY


def test_initial_delay_counts_from_the_start_of_the_engine():
    making = waiting = probes(UP, (10, False))
    for now in (50, 500):  # The pod reports that the environment is being created.
        making = replica_states.after_engine_report(making, None, now)
    assert replica_states.with_end_reason(making, PROBE, 500) == (making, "")
    started = replica_states.after_engine_report(making, 2.0, 512)  # 2 s ago, by the pod's report.
    assert replica_states.with_end_reason(started, PROBE, 630) == (started, "")
    late, why = replica_states.with_end_reason(started, PROBE, 631)
    assert late.is_late and "(120) of the engine's start" in why
    assert replica_states.with_end_reason(making, PROBE, 621)[0].is_late  # No report since then.
    assert replica_states.with_end_reason(waiting, PROBE, 131)[0].is_late  # Nor ever.
    hanging = replica_states.after_engine_report(making, None, 4000)
    assert replica_states.with_end_reason(hanging, PROBE, 4000)[
        0
    ].is_late  # No creation of an environment takes that long.


def test_replica_that_fails_for_too_long_after_ready_is_ended():
    failing = probes(READY, (10, False), (20, False), (30, False))
    assert replica_states.with_end_reason(failing, PROBE, 189)[1] == ""
    ended, why = replica_states.with_end_reason(failing, PROBE, 190)
    assert (
        "180 s" in why and replica_states.state_of(replace(ended, down=ProcessStatus.SUCCEEDED)) is State.FAILED_PROBING
    )
    assert replica_states.with_end_reason(probes(failing, (40, True)), PROBE, 500)[1] == ""


@given(st.lists(st.booleans(), max_size=30))
def test_ready_means_two_passes_since_three_misses(results):
    facts = probes(UP, *enumerate(results))
    tail, ready = "".join("+" if one else "-" for one in results), False
    for end in range(1, len(tail) + 1):
        ready = (ready or tail[:end].endswith("++")) and not tail[:end].endswith("---")
    assert facts.is_ready == ready


@pytest.mark.parametrize(
    ("replicas", "is_ending", "state"),
    [
        ([State.READY, State.FAILED], False, ServiceState.READY),
        ([State.STARTING, State.FAILED_PROBING], False, ServiceState.REPLACING),
        ([State.SHUTTING_DOWN, State.PENDING], False, ServiceState.REPLACING),
        ([State.PREEMPTED, State.PROVISIONING], False, ServiceState.REPLACING),
        ([State.FAILED], False, ServiceState.FAILED),
        ([State.STARTING], False, ServiceState.REPLICA_INIT),
        ([], False, ServiceState.NO_REPLICA),
        ([State.READY], True, ServiceState.SHUTTING_DOWN),
    ],
)
def test_state_of_a_service_follows_from_its_replicas(replicas, is_ending, state):
    assert replica_states.service_state(replicas, is_ending) is state


def fleet(old: int, new: dict[State, int]) -> list[UpdateMember]:
    members = [UpdateMember(number=n, version=1, state=State.READY) for n in range(1, old + 1)]
    for state, count in new.items():
        members += [UpdateMember(number=len(members) + 1 + n, version=2, state=state) for n in range(count)]
    return members


def test_rolling_update_removes_one_old_replica_per_ready_new_one():
    for ready in range(4):
        members = fleet(3, {State.READY: ready, State.STARTING: 3 - ready})
        gone = update.replicas_to_stop("rolling", 3, 3, 2, members)
        assert gone == tuple([3, 2, 1][:ready])
        left = [one for one in update.serving("rolling", 3, members) if one not in gone]
        assert len(left) == 3  # Never fewer than required, at every moment.


def test_blue_green_update_switches_when_enough_new_replicas_are_ready():
    before, after = fleet(3, {State.READY: 1, State.STARTING: 2}), fleet(3, {State.READY: 2, State.STARTING: 1})
    assert update.serving("blue_green", 2, before) == (1, 2, 3)
    assert update.replicas_to_stop("blue_green", 2, 3, 2, before) == ()
    assert update.serving("blue_green", 2, after) == (4, 5)
    assert update.replicas_to_stop("blue_green", 2, 3, 2, after) == (1, 2, 3)


@pytest.mark.parametrize("mode", update.MODES)
def test_version_that_never_becomes_ready_leaves_the_old_one_serving(mode):
    members = fleet(3, {State.FAILED: 3})
    assert update.serving(mode, 1, members) == (1, 2, 3) and update.replicas_to_stop(mode, 1, 3, 2, members) == ()


@given(st.integers(0, 5), st.integers(1, 5), st.lists(st.sampled_from(replica_states.LIVE), max_size=5))
def test_update_never_leaves_fewer_ready_than_before_or_than_wanted(old, final, new):
    members = [UpdateMember(number=n, version=1, state=State.READY) for n in range(old)]
    members += [UpdateMember(number=old + n, version=2, state=one) for n, one in enumerate(new)]
    for mode in update.MODES:
        gone = update.replicas_to_stop(mode, 1, final, 2, members)
        serving = set(update.serving(mode, 1, members)) - set(gone)
        ready = sum(one.state is State.READY for one in members)
        assert len(serving) >= (1 if ready else 0)
        if mode == "rolling":
            assert len(serving) >= min(final, ready)
