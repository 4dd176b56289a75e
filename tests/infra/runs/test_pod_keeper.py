"""Keeping a pod of a set, and the reasons to stop; tests/end_to_end/test_street_market.py loses a real pod."""

import json
import time
from dataclasses import replace

import pytest

from infra.agent.job import Job, Limits
from infra.agent.limits import FINISH_BY
from infra.errors import LimitHit
from infra.ledger.journal import Journal
from infra.ledger.op import ASKED
from infra.providers.local import Local
from infra.records import Plan, Request
from infra.runs import pods, renting
from infra.runs.keepers import keeper, pod_keeper, run_keeper
from infra.runs.keepers.pod_keeper import PodKeeper
from infra.runs.keepers.pod_set import set_lease
from infra.runs.keepers.recovery import POD, recovers
from infra.runs.observation import Observation
from infra.runs.run_home import RunHome


@pytest.fixture
def journal(tmp_path):
    with Journal.open(environ={"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) as opened:
        yield opened


def pod(journal, owner_kind="pod_set", owner="lab", recovers=True, **more):
    request = json.dumps({"run": "desk", "provider": "lium", "recovers": recovers})
    job = Job("desk", "sw1-a", (), kind="hold", stays=True).to_json()
    op = journal.plan(
        token="sw1-a", run="desk", vendor="lium", owner_kind=owner_kind, owner=owner, request=request, job=job, **more
    )
    for event in ("sending", "created", "armed"):
        op = journal.advance(op, event)
    return op


@pytest.fixture
def kept(journal, tmp_path, monkeypatch):
    """Return a keeper of a gone pod, and the output; `pods.end` accepts the end."""
    said = []
    one = PodKeeper(journal, lambda _: Local(tmp_path), lambda _: [], RunHome(tmp_path), {}, said.append)
    monkeypatch.setattr(pod_keeper, "RETRY_S", 0.01)
    monkeypatch.setattr(one, "observe", lambda op, asks: Observation(False, why="lium has it no more"))

    def end(_, op, journal, reason, outcome):
        return journal.advance(journal.advance(op, "end", reason=reason, outcome=outcome), "gone") if op.is_live else op

    monkeypatch.setattr(pods, "end", end)
    with one.hold_lease("desk"):
        yield one, said


def test_only_a_recoverable_pod_of_a_set_without_work_is_kept(journal):
    assert recovers(pod(journal))
    assert not recovers(journal.note(journal.op("sw1-a"), target="t"))  # a run's keeper has the pod
    others = ({"owner_kind": "held", "owner": ""}, {"owner_kind": "", "owner": ""}, {"owner_kind": "service"})
    for number, other in enumerate((*others, {"recovers": False})):
        with Journal.open(journal.path.with_name(f"{number}.db")) as one:
            assert not recovers(pod(one, **other))


@pytest.mark.parametrize("change", [{"target": "t"}, {"outcome": ASKED}])
def test_a_pod_with_work_or_a_requested_end_is_left_alone(journal, kept, change):
    op = pod(journal)
    op = journal.note(op, **change) if "target" in change else journal.advance(op, "end", **change)
    assert kept[0].watch_pod(op) == op and kept[1] == []


def test_a_gone_pod_without_remaining_limits_is_not_rented_again(journal, kept):
    op = pod(journal, ttl_s=pod_keeper.LEAST_S - 1)
    with pytest.raises(LimitHit, match="lium has it no more, and the limits leave no time for a new pod"):
        kept[0].watch_pod(op)
    assert (journal.op("sw1-a").state, journal.op("sw1-a").outcome) == ("TERMINATED", "limit")


def test_a_pod_without_work_continues_after_its_limit_by_its_set_file(journal, kept):
    with pytest.raises(LimitHit, match="the limit is reached; continue with a higher limit: inv apply"):
        kept[0].remaining_job(pod(journal), Limits(time_s=0.0))


@pytest.mark.parametrize(
    ("left_s", "given_s", "expected_s"), [(100.0, None, 100.0), (9000.0, None, 1000.0), (-5.0, 500.0, 500.0)]
)
def test_a_replacement_ends_at_the_same_moment_as_the_lost_pod(journal, kept, left_s, given_s, expected_s):
    """A new time limit by the user replaces the moment, also for later replacements."""
    environ = {FINISH_BY: str(time.time() + left_s)}
    job = Job("desk", "sw1-a", (), Limits(time_s=1000.0), environ=environ, kind="hold", stays=True)
    op = journal.note(pod(journal), job=job.to_json())
    found, _ = kept[0].remaining_job(op, Limits(time_s=given_s))
    assert found.limits.time_s == pytest.approx(expected_s, abs=60) and found.limits.time_s <= expected_s
    assert bool(found.environ[FINISH_BY]) is (given_s is None)


def test_a_pod_is_not_replaced_after_the_end_of_all_work(journal, kept):
    job = Job("desk", "sw1-a", (), environ={FINISH_BY: str(time.time() - 1)}, kind="hold", stays=True)
    with pytest.raises(LimitHit, match="the limit is reached"):
        kept[0].remaining_job(journal.note(pod(journal), job=job.to_json()), Limits())


def test_a_launch_after_a_wait_ends_at_the_same_moment(journal):
    for left_s, expected_s in ((500.0, 500.0), (5000.0, 1000.0)):
        job = Job("", "", (), Limits(time_s=1000.0), environ={FINISH_BY: str(time.time() + left_s)})
        plan = Plan("t", "", (), job, Request(run="otter"))
        rental = renting.Rental(plan, [], pytest.fail, journal, pytest.fail, renting.PLAIN)
        time_s = rental.limits(1).time_s
        assert time_s == pytest.approx(expected_s, abs=60) and time_s <= expected_s
    late = replace(job, environ={FINISH_BY: str(time.time() - 1)})
    rental = renting.Rental(replace(plan, job=late), [], pytest.fail, journal, pytest.fail, renting.PLAIN)
    with pytest.raises(LimitHit, match="the wait for a machine has used up the limit"):
        rental.limits(1)


def test_a_repeatedly_preempted_pod_is_given_up(journal, kept):
    op = pod(journal)
    for number in range(POD.retries.most):
        op = journal.note(op, recoveries=number + 1)
    with pytest.raises(keeper.GivenUp, match="3 times within 1 h 00 min"):
        kept[0].watch_pod(op)


def test_a_change_of_the_set_takes_precedence_and_unavailable_machines_are_retried(journal, kept, monkeypatch):
    one, said = kept
    op, looked, waits = pod(journal), [], []
    lease = journal.leases.acquire(set_lease("lab"))

    def rest(op, seconds):
        waits.append(seconds)
        assert journal.op("sw1-a").is_live is (len(waits) == 1)
        if len(waits) == 1:
            journal.leases.release(lease)
        elif len(waits) > 3:
            pods.ask_to_end(journal.ops(run="desk")[-1], journal)
        return False

    def find(request):
        looked.append((request.run, time.time()))
        raise run_keeper.NoReplacement("nothing is on offer")

    monkeypatch.setattr(one, "wait_for_change", rest)
    one.find = find
    assert one.watch_pod(op).outcome == ASKED
    assert [name for name, _ in looked] == ["desk"] * len(looked) and len(looked) > 1
    assert journal.op("sw1-a").reason.count("nothing is on offer") == 1  # for `inv status`
    assert [line for line in said if "nothing is on offer" in line] == [
        "desk: nothing is on offer; retrying until success. To end the run: inv down desk"
    ]
