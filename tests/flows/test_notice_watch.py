"""The events worth a notice: nearby limits, idle GPUs, replicas in trouble, and no other events."""

from dataclasses import replace

import pytest

from flows.supervisor.notice_watch import of_run, of_service
from infra.agent.limits import Clocks
from infra.ledger.op import Op
from infra.runs.observation import Observation
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, ServiceRecord

RENTED = Op(token="sw1-a", run="calm-1", vendor="lium", state="READY", remote_id="x", rate=2_000_000, cap=1_000_000,
            intent_at=1000, sent_at=1000, boot_id="b", boot_s=0.0)  # fmt: skip


def at(seconds: float) -> Clocks:
    return Clocks("b", seconds, 1000 + seconds)


@pytest.mark.parametrize(("op", "seen", "seconds", "idle_s", "events"), [
    (RENTED, Observation(), 1439, 0.0, []),
    (RENTED, Observation(), 1441, 0.0, ["near limit"]),
    (RENTED, Observation(verdict={"state": "succeeded"}), 1700, 9999.0, []),
    (RENTED, Observation(), 100, 599.0, []),
    (RENTED, Observation(), 100, 601.0, ["idle"]),
    (RENTED, Observation(guard={"idle_s": 700.0}), 100, 0.0, ["idle"]),
    (replace(RENTED, rate=0, cap=None), Observation(guard={"limit_s": 100.0, "elapsed_s": 81.0}), 0, 0.0,
     ["near limit"]),
    (replace(RENTED, rate=0, cap=None), Observation(guard={"limit_s": None}), 1e6, 0.0, []),
])  # fmt: skip
def test_a_run_near_its_limit_or_with_idle_gpus_gets_a_notice(op, seen, seconds, idle_s, events):
    found = list(of_run(op, seen, at(seconds), idle_s))
    assert [one.event for one in found] == events
    later = [one.key for one in of_run(op, seen, at(seconds + 2), idle_s)]
    assert [one.key for one in found] == later[: len(found)]  # the same trouble is reported once


def test_a_failed_or_silent_replica_gets_a_notice_but_a_starting_replica_does_not():
    well = Facts(launch=ProcessStatus.SUCCEEDED)
    starting = Member(number=0, version=1, run="demo-0", facts=well)
    ended = replace(well, down=ProcessStatus.SUCCEEDED, first_ready_at=1.0, is_ready=True)
    silent = Member(number=1, version=1, run="demo-1", facts=replace(well, first_ready_at=1.0))
    gone = Member(number=2, version=1, run="demo-2", facts=replace(ended, preempted=True), why="lium says it is gone")
    broken = Member(number=3, version=1, run="demo-3", facts=replace(well, app_failed=True))
    released = Member(number=4, version=1, run="demo-4", facts=ended)
    found = list(of_service("demo", ServiceRecord(members=(starting, silent, gone, broken, released))))
    assert [one.key.split()[0] for one in found] == ["1", "2", "3"]
    assert any("lium says it is gone" in one.note for one in found)
    assert all(one.event == "unhealthy" and one.subject == "demo" for one in found)
