"""Money in a rehearsed market: limits of a launch, messages before the rental, and consequences."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from infra.ledger.journal import Journal
from infra.rehearsal import attach
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.world import ROOT, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),  # For the machines of the market.
    pytest.mark.timeout(400),  # Guard against hangs, with eight other tests at work.
]
AT_ONCE = ("--yes", "--detach", "--no-accept")  # The disk of this machine may be nearly full.
L40S = ("--gpu", "L40S", "--num-gpus", "1", "--phase", "base")


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    user = Rehearsed(tmp_path_factory.mktemp("user"), KEYS)
    attach.start(user.base, speed=60)
    yield user
    user.inv("down", "--all", "--rehearse")
    user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")


def stderr_of(user, *words: str, code: int = 0) -> str:
    """Return the stderr of a command as one line."""
    process = user.run(*words, "--rehearse")
    err = process.stderr
    assert process.returncode == code and "Traceback" not in err, err
    return " ".join(err.split())


@pytest.mark.nightly
@pytest.mark.pack("jobs")
def test_launch_without_a_limit_gets_one_from_its_plan_with_the_reason(user):
    said = stderr_of(user, "launch", *L40S, "--dry-run")
    assert "neither --ttl nor --spend-limit is given: the limit is " in said
    assert "times the high estimate of " in said and "based on a table" in said, said
    limit = said.partition("the limit is ")[2].partition(" USD")[0]
    assert 5 <= float(limit) < 150 and f"{limit} USD are spent" in said
    high = said.partition("times the high estimate of ")[2].partition(" USD")[0]
    assert re.search(rf"in this rehearsal: \S+ / \S+ / {re.escape(high)} simulated USD", said), said
    (note,) = (one for one in user.json("launch", *L40S, "--dry-run", "--rehearse")["notes"] if "limit is" in one)
    # In a rehearsal the limit follows the simulation, and so the load of this machine.
    assert float(note.partition("the limit is ")[2].partition(" USD")[0]) == pytest.approx(float(limit), rel=0.5)
    for given in (("--spend-limit", "7"), ("--ttl", "2h")):
        assert "neither --ttl" not in stderr_of(user, "launch", *L40S, "--dry-run", *given)
    assert "because the cost of the work is unknown" in stderr_of(
        user, "launch", "--cmd", "true", *L40S[:4], "--dry-run"
    )
    assert "the limit is 150.00 USD" in stderr_of(user, "pod.create", *L40S[:4], "--dry-run")


@pytest.mark.nightly
def test_run_that_needs_more_than_its_limit_warns_after_twenty_steps(user):
    never = ("--set", "base.steps=1000000", "--set", "base.compile=never")
    words = (*never, "--spend-limit", "3", "--tag", "long", "-n", "long")
    stderr_of(user, "launch", *L40S, *words, *AT_ONCE)
    said = until(lambda: user.status()["long"]["beyond_limit"], "the forecast is above the limit", 240)
    assert (
        "at this pace the run takes about" in said
        and "To raise the limit: inv down long, then inv resume long --sp" in said
    )
    user.json("down", "long", "--rehearse")
    assert user.status()["long"]["beyond_limit"] is None


@pytest.mark.nightly
@pytest.mark.pack("jobs")
def test_resume_shows_the_machine_and_asks(user):
    words = ("-n", "calm", "--spend-limit", "4", "--cmd", "sleep 1000", *L40S[:4], *AT_ONCE)
    stderr_of(user, "launch", *words)
    user.json("down", "calm", "--rehearse")
    rented = len(user.truth()["pods"])
    said = stderr_of(user, "resume", "calm", code=2)
    assert (
        "Available L40S Instances" in said
        and "cannot ask which instance to rent; nothing was rented. Pass --yes" in said
    )
    assert "--cloud" not in said
    assert "calm has cost " in said and " of 4.00 USD since the first launch; the limit" in said and "ended by" in said
    plan = user.json("resume", "calm", "--dry-run", "--rehearse")
    assert plan["rents"] and 3 < float(plan["left_usd"]) < 4
    # The same work again: the smaller limit stays.
    kept = stderr_of(user, "launch", "--cmd", "sleep 1000", *L40S[:4], "-n", "calm", "--dry-run")
    assert "calm continues under the limit of 4.00 USD, of which 0." in kept
    assert len(user.truth()["pods"]) == rented


@pytest.mark.nightly
@pytest.mark.pack("jobs")
def test_run_ended_at_its_limit_is_not_resumed_without_a_new_limit(user):
    words = ("-n", "spent", "--cmd", "sleep 1000", *L40S[:4], *AT_ONCE)
    stderr_of(user, "launch", *words, "--spend-limit", "0.25")
    with Journal.open(user.world.folder / attach.JOURNAL, user.environ) as journal:
        until(lambda: not journal.ops(run="spent")[-1].is_live, "its end at its limit", 120)
    for line in (("resume", "spent", "--yes"), ("launch", *words)):
        said = stderr_of(user, *line, code=5)
        assert "nothing was rented. To continue, repeat the command with a higher limit: --spend-limit 1" in said, said
    plan = user.json("resume", "spent", "--spend-limit", "1", "--dry-run", "--rehearse")
    # A run ends some seconds before or after its limit.
    assert plan["rents"] and 0 < float(plan["left_usd"]) < 0.9


def test_dry_run_of_a_rehearsal_leaves_no_preemption_behind(user):
    user.inv("rehearse", *L40S, "--preempt", "2", "--dry-run")
    assert not user.truth()["preemptions_left"]


@pytest.mark.nightly
def test_closed_terminal_during_a_launch_is_recorded_and_no_machine_is_blamed(user):
    controller, terminal = pty.openpty()
    words = (*L40S, "--tag", "closed", "-n", "closed", "--spend-limit", "5", "--yes", "--no-accept")
    line = [sys.executable, "-m", "invoke", "launch", "--rehearse", *words]
    launch = subprocess.Popen(
        line, cwd=ROOT, env=user.environ, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    said = ""
    while not re.search(r"\brent\b", said):
        said += os.read(controller, 65536).decode(errors="replace")
    os.close(controller)  # Further output fails.
    assert launch.wait(120) == 128 + signal.SIGHUP
    until(lambda: user.status()["closed"]["state"] == "stopped", "its end")
    why = stderr_of(user, "why", "closed") + user.run("why", "closed", "--rehearse").stdout
    assert "its launch was cut off: the terminal was closed before the work began" in why and "given back" not in why
    assert not user.truth()["billing"]


@pytest.mark.nightly
def test_rented_machine_without_a_sandbox_is_returned_before_any_work(tmp_path):
    """The acceptance test after the boot finds the fault: the kernel refuses Landlock and namespaces."""
    user = Rehearsed(tmp_path, KEYS)
    begin = (
        f"import pathlib; from infra.rehearsal import attach; attach.start(pathlib.Path({str(user.base)!r}), speed=60)"
    )
    strict = [sys.executable, "-m", "tests.programs.without_sandbox", sys.executable, "-c", begin]
    subprocess.run(strict, cwd=ROOT, check=True, timeout=120)
    words = ("launch", "--gpu", "L40S", "--num-gpus", "1", "--phase", "base+sft+rl", "--task", "mbpp")
    assert "with neither Landlock (Linux 5.13) nor bubblewrap is given back" in stderr_of(user, *words, "--dry-run")
    said = stderr_of(user, *words, "--yes", "--detach", code=3)
    assert "was given back: " in said and "nor bubblewrap can confine the code of answers on this machine" in said, said
    pods = user.truth()["pods"]
    assert pods and {one["state"] for one in pods} <= {"gone", "deleting"}
    user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")
