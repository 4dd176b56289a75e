"""A rented pod that hangs past the limit, at a vendor with a broken timer, without a supervisor.

Every process of the pod is stopped, so the guard enforces no limit. The supervisor has exited, was killed, or is
frozen with the lease of the run. The next command ends the pod.
"""

import contextlib
import os
import re
import signal
import time

import pytest

from infra import strict_yaml
from infra.agent.process import find, identify, send
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, keeper_lease
from infra.rehearsal import attach
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.world import ROOT, until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(400),
]
NO_TIMER = strict_yaml.read(ROOT / "examples" / "no-timer.yaml")
SPEED = 60


@pytest.fixture
def user(tmp_path):
    one = Rehearsed(tmp_path, KEYS)
    attach.start(one.base, speed=SPEED)
    one.world.send_command("/faults", NO_TIMER)
    yield one
    for pid in one.processes():  # Also processes that a failed test left frozen.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    with contextlib.suppress(attach.NoWorld):
        one.inv("rehearse", "--stop")
    assert until(lambda: not one.processes(), "the end of everything")


def journal_of(user):
    return Journal.open(user.world.folder / attach.JOURNAL, user.environ)


def supervisor_of(user):
    with journal_of(user) as journal:
        return journal.leases.holder(SUPERVISOR)


def hang(token):
    """Stop every process of a pod, including processes started meanwhile."""
    stopped = set()
    while left := [one for one in find(token) if one not in stopped]:
        for one in left:
            send(one, signal.SIGSTOP)
        stopped.update(left)
    return stopped


def hung_run(user, name):
    """Return a run at work on a hung pod: the journal row, and the supervising process."""
    user.inv(
        "launch",
        "--rehearse",
        "--provider",
        "runpod",
        "--gpu",
        "H100",
        "--cmd",
        "sleep 100000",
        "-n",
        name,
        "--spend-limit",
        "1.50",
        "--detach",
        "--yes",
    )
    with journal_of(user) as journal:
        (op,) = journal.ops(run=name)
        until(lambda: journal.leases.holder(keeper_lease(name)), "a keeper")
    keeper = supervisor_of(user)
    assert hang(op.token)
    return op, keeper


def wait_past_limit(user, token):
    with journal_of(user) as journal:
        op = journal.op(token)
    seconds = op.cap / op.rate * 3600 / SPEED + 40 * 60 / SPEED  # 40 minutes of the vendor's clock after the end.
    time.sleep(max(0.0, op.sent_at + seconds - time.time()))


def run_in_parallel(user, *commands):
    """Run these commands at the same time; return their exit codes and their combined output."""
    begun = [user.begin(one, "--rehearse") for one in commands]
    said = [process.communicate(timeout=300)[1] for process in begun]
    assert not any("Traceback" in one for one in said), said
    return [process.returncode for process in begun], " ".join(" ".join(said).split())


@pytest.mark.parametrize(
    ("number", "commands"),
    [
        (signal.SIGSTOP, ("status", "audit")),
        (signal.SIGSTOP, ("status",)),
        (signal.SIGKILL, ("status",)),
        (signal.SIGTERM, ("audit",)),
        (signal.SIGSTOP, ("cost",)),
    ],
)
def test_next_command_ends_a_hung_pod_without_a_timer(user, number, commands):
    op, supervisor = hung_run(user, "otter")
    os.kill(supervisor.pid, number)
    if number != signal.SIGSTOP:
        until(lambda: identify(supervisor.pid) != supervisor, "its end")
    wait_past_limit(user, op.token)
    assert user.truth()["billing"] == 1  # No timer, no guard, no supervisor.
    codes, said = run_in_parallel(user, *commands)
    assert user.truth()["billing"] == 0
    assert 5 in codes or commands == ("cost",), said
    # Durations below an hour have seconds: "56 min 32 s".
    age = r"(\d+ h \d+ min|\d+ min \d+ s)"
    assert re.search(rf"otter: last heard {age} ago; over its limit by \d+\.\d\d USD", said), said
    assert "the pod was ended, and nothing of it bills" in said
    with journal_of(user) as journal:
        row = journal.op(op.token)
        assert (row.state, row.outcome) == ("TERMINATED", "limit")
        assert [one.event for one in journal.events("otter")].count("end") == 1  # Also with two simultaneous commands.
    assert run_in_parallel(user, *commands)[0] == [0] * len(commands)  # The end is reported once.


def test_pod_of_a_launch_stopped_by_ctrl_z_is_ended_at_its_limit(user):
    """Ctrl-Z stops a launch that follows its run and holds the lease of the run."""
    launch = user.begin(
        "launch",
        "--rehearse",
        "--provider",
        "runpod",
        "--gpu",
        "H100",
        "--cmd",
        "sleep 100000",
        "-n",
        "otter",
        "--spend-limit",
        "1.50",
        "--yes",
    )
    with journal_of(user) as journal:
        until(lambda: identify(launch.pid) == journal.leases.holder(keeper_lease("otter")), "its keeper")
        (op,) = journal.ops(run="otter")
        os.killpg(launch.pid, signal.SIGSTOP)
        assert hang(op.token)
        wait_past_limit(user, op.token)
        codes, said = run_in_parallel(user, "status")
        assert codes == [5] and user.truth()["billing"] == 0, said
        assert "otter: last heard " in said and "the pod was ended, and nothing of it bills" in said
        os.killpg(launch.pid, signal.SIGCONT)
        _, err = launch.communicate(timeout=120)
        assert launch.returncode not in (0, None) and "Traceback" not in err, err
        assert [one.event for one in journal.events("otter")].count("end") == 1
    assert user.calls("create") == user.calls("delete") == 1


SILENT_S = 62.0  # Longer than the allowed silence of a supervisor.


# A minute of silence; tests/infra/ledger/test_leases.py has a shorter test of a lease.
@pytest.mark.parametrize("what", ["ends", "rents"])
def test_frozen_supervisor_is_replaced_and_stays_idle_after_it_wakes(user, what):
    """The supervisor freezes during a delete request that hangs, or while a run waits for a new pod."""
    user.inv(
        "launch",
        "--rehearse",
        "--provider",
        "runpod",
        "--gpu",
        "H100",
        "--use-spot",
        "--cmd",
        "sleep 100000",
        "-n",
        "otter",
        "--spend-limit",
        "40",
        "--detach",
        "--yes",
    )
    with journal_of(user) as journal:
        until(lambda: journal.leases.holder(keeper_lease("otter")), "a keeper")
        (op,) = journal.ops(run="otter")
    old = supervisor_of(user)
    if what == "ends":
        user.world.send_command("/faults", {"requests": [{"call": "delete", "kind": "error", "count": None}]})
        user.run("down", "otter", "--rehearse")
        until(lambda: user.calls("delete") > 2, "more tries")
    else:
        user.world.send_command("/sold-out", {"is": True})
        user.world.send_command("/preempt", {"id": op.remote_id})
        with journal_of(user) as journal:
            until(lambda: not journal.op(op.token).is_live, "its end in the journal")
    os.kill(old.pid, signal.SIGSTOP)
    time.sleep(SILENT_S)
    user.run("status", "--rehearse")
    new = until(lambda: supervisor_of(user), "another supervisor")
    assert new != old
    user.world.send_command("/faults", {})
    user.world.send_command("/sold-out", {"is": False})
    with journal_of(user) as journal:
        rows = journal.ops(run="otter")
        done = lambda: journal.ops(run="otter")[-1].state == ("TERMINATED" if what == "ends" else "READY")  # noqa: E731
        until(done, "what the old one was about to do")
        if what == "rents":
            until(lambda: journal.leases.holder(keeper_lease("otter")) == new, "the new keeper")
        before = journal.version(), user.calls("delete"), user.calls("create"), journal.ops()
        assert identify(old.pid) == old
        os.kill(old.pid, signal.SIGCONT)
        until(lambda: identify(old.pid) != old, "the end of the old one")
        assert (journal.version(), user.calls("delete"), user.calls("create"), journal.ops()) == before
        assert len(journal.ops(run="otter")) == (1 if what == "ends" else 2), rows
    log = (user.world.folder / "journal-supervisor.log").read_text()
    assert f"process {old.pid} exits: " in log and f"process {new.pid} has taken over" in log
    assert "Traceback" not in log
