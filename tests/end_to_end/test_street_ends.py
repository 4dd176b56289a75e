"""A RunPod pod with a killed guard and timer, or on a hanging machine, is ended at the limit by a process elsewhere."""

import contextlib
import shutil
import signal
import time

import pytest

from infra.agent.process import find, send
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.rehearsal import attach
from infra.rehearsal.clock import parse_iso
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.faults.ends import end_timer, stop_machine
from tests.hosts import sshd as sshd
from tests.world import until

pytestmark = [
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.nightly,  # A minute and a half each, until the limit.
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(600),
]
SPEED = 10  # A hanging pod is observed for five seconds of real time before its end.
LATE_S = 120.0 + 2.0 * SPEED  # By the vendor's clock: two minutes, and two seconds of real time.
LAUNCH = ("--provider", "runpod", "--gpu", "H100", "--cmd", "sleep 100000", "-n", "otter", "--spend-limit", "0.45",
          "--detach", "--yes")  # fmt: skip


@pytest.fixture
def user(tmp_path):
    one = Rehearsed(tmp_path, KEYS)
    attach.start(one.base, speed=SPEED)
    yield one
    with contextlib.suppress(attach.NoWorld):
        one.inv("rehearse", "--stop")
    assert until(lambda: not one.processes(), "the end of everything")


def ending_process(world, limit_s):
    """Return the process that ended the only pod; fail for a pod older than its limit."""
    (pod,) = world.truth()["pods"]
    left_s = parse_iso(pod["created_at"]) + limit_s + LATE_S - parse_iso(world.truth()["now"])
    time.sleep(max(0.0, left_s) / SPEED)
    (pod,) = world.truth()["pods"]
    assert pod["ended_at"] and world.truth()["billing"] == 0, pod
    over_s = parse_iso(pod["ended_at"]) - parse_iso(pod["created_at"]) - limit_s
    assert over_s <= LATE_S, over_s
    return pod["ended_by"]


def limit_of(op):
    return op.cap / op.rate * 3600


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_supervisor_ends_a_pod_without_guard_and_timer_at_its_limit(user, how):
    user.inv("launch", "--rehearse", *LAUNCH)
    with Journal.open(user.world.folder / attach.JOURNAL, user.environ) as journal:
        (op,) = journal.ops(run="otter")
        until(lambda: journal.leases.holder(keeper_lease("otter")), "a keeper")
    pods = user.world.folder / "pods"
    if how == "hangs":
        stop_machine(pods, op.remote_id, op.token)
    else:
        (home,) = pods.glob(f"{op.remote_id}-*/home")
        until(lambda: not sum(send(one, signal.SIGKILL) for one in find(op.token)), "the end of its guard")
        shutil.rmtree(home / ".slipway", ignore_errors=True)
        assert end_timer(home)
    assert ending_process(user.world, limit_of(op)) == "client"


def test_pod_ended_by_its_timer_is_not_reported_as_overdue(user):
    """The laptop was closed: the next command finds the limit passed and the machine gone."""
    user.inv("launch", "--rehearse", *LAUNCH)
    with Journal.open(user.world.folder / attach.JOURNAL, user.environ) as journal:
        (op,) = journal.ops(run="otter")
        keeper = until(lambda: journal.leases.holder(keeper_lease("otter")), "a keeper")
    assert send(keeper, signal.SIGKILL)
    (home,) = (user.world.folder / "pods").glob(f"{op.remote_id}-*/home")
    until(lambda: not sum(send(one, signal.SIGKILL) for one in find(op.token)), "the end of its guard")
    shutil.rmtree(home / ".slipway", ignore_errors=True)
    assert ending_process(user.world, limit_of(op)) != "client"
    process = user.run("status", "--rehearse")
    said = " ".join(process.stderr.split())
    assert process.returncode == 0, said
    assert "the limit has passed, and the machine was already gone" in said and "over its limit" not in said, said
