"""The next actions of a controller, as a table: no process, no clock."""

import pytest

from serve.policy import fleet
from serve.policy.autoscaler import AutoscalerMemory, Rule
from serve.policy.fleet import Load
from serve.policy.replica_states import Facts, ProcessStatus, State
from serve.policy.service_state import (
    Member,
    ServiceRecord,
    Version,
    WantedService,
    parse_desired,
    parse_observed,
    write,
)

READY = Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0, is_ready=True)
STARTING = Facts(launch=ProcessStatus.SUCCEEDED)
PENDING = Facts()
CRASHED = Facts(launch=ProcessStatus.SUCCEEDED, app_failed=True, down=ProcessStatus.SUCCEEDED)
CRASHING = Facts(launch=ProcessStatus.SUCCEEDED, app_failed=True, down=ProcessStatus.RUNNING)
LEAVING = Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0, is_ready=True, down=ProcessStatus.SCHEDULED)
FIXED = Rule(least=2, most=2)
TWO = AutoscalerMemory(2)


def members(*facts, version=1):
    return [Member(number=n, version=version, run=f"s-{n}", facts=one) for n, one in enumerate(facts)]


def course(there, newest=1, mode="rolling", rule=FIXED, memory=TWO, is_tick=False, **load):
    return fleet.next_actions(mode, rule, memory, newest, there, Load(**load), is_tick)


def test_missing_replica_is_started_between_two_ticks_too():
    assert course([]).start_on_demand == 2
    assert course(members(READY)).start_on_demand == 1
    assert course(members(READY, STARTING)).start_on_demand == 0
    assert course(members(READY, LEAVING)).start_on_demand == 1


def test_load_change_applies_only_at_ticks():
    rule = Rule(least=1, most=4, target_qps=1.0, up_ticks=1)
    there = members(READY)
    assert course(there, rule=rule, memory=AutoscalerMemory(1), qps=3.0).start_on_demand == 0
    after = course(there, rule=rule, memory=AutoscalerMemory(1), qps=3.0, is_tick=True)
    assert (after.memory.target, after.start_on_demand) == (3, 2)


@pytest.mark.parametrize("failed", [CRASHED, CRASHING])
def test_three_replicas_that_were_never_ready_stop_further_launches(failed):
    assert course(members(failed)).start_on_demand == 2
    assert course(members(failed, failed)).start_on_demand == 1
    given_up = course(members(failed, failed, failed))
    assert given_up.start_on_demand == 0 and "never ready" in given_up.held
    assert course(members(failed, failed, failed, READY)).start_on_demand == 1


def test_rolling_update_swaps_one_for_one_and_both_versions_answer():
    old, new = members(READY, READY), members(READY, READY, READY, version=2)[2:]
    both = [*old, *new]
    assert fleet.serving("rolling", FIXED, both) == (0, 1, 2)
    assert [number for number, _ in course(both, newest=2).stop] == [1]
    nothing_yet = [*old, *members(STARTING, STARTING, STARTING, STARTING, version=2)[2:]]
    assert not course(nothing_yet, newest=2).stop and not course(nothing_yet, newest=2).start_on_demand


def test_blue_green_update_switches_all_at_once():
    old, half = members(READY, READY), members(PENDING, PENDING, READY, STARTING, version=2)[2:]
    assert fleet.serving("blue_green", FIXED, [*old, *half]) == (0, 1)
    assert not course([*old, *half], newest=2, mode="blue_green").stop
    whole = [*old, *members(PENDING, PENDING, READY, READY, version=2)[2:]]
    assert fleet.serving("blue_green", FIXED, whole) == (2, 3)
    assert [number for number, _ in course(whole, newest=2, mode="blue_green").stop] == [0, 1]


def test_failing_version_leaves_the_old_one_serving():
    there = [*members(READY, READY), *members(*[CRASHED] * 5, version=2)[2:]]
    after = course(there, newest=2)
    assert not after.stop and not after.start_on_demand and after.held
    assert fleet.serving("rolling", FIXED, there) == (0, 1)


def test_budget_is_never_exceeded():
    assert course([], affordable=1).start_on_demand == 1
    assert "budget" in course(members(READY), affordable=0).held


def test_stored_state_is_read_back_unchanged():
    version = Version(number=3, document={"service": {"replicas": 1}}, model="hf://a/b", engine="fake")
    wanted = WantedService(versions=(version,), mode="blue_green", port=8000)
    assert parse_desired(write(wanted)) == wanted and wanted.version(7) is version
    seen = ServiceRecord(
        members=tuple(members(READY, CRASHED)), memory=AutoscalerMemory(2, up=1), endpoint="http://127.0.0.1:1", port=1
    )
    assert parse_observed(write(seen)) == seen and parse_observed("") == ServiceRecord()
    assert [one.state for one in seen.members] == [State.READY, State.FAILED]
