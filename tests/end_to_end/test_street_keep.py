"""`inv keep` over a real sshd: a dead launcher, two keepers, a killed keeper, a pod with killed guard and agent."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from infra.agent.process import Identity, send
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from tests.end_to_end.test_street_ssh import world as world
from tests.hosts import Host
from tests.hosts import sshd as sshd
from tests.programs import source
from tests.world import ONE_THREAD, ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]


def launch_without_launcher(world: World, sshd: Host, *flags: str) -> str:
    """Launch a run over SSH, kill the launcher at the first training step; return the run's name."""
    launch = world.begin("launch", "--provider", "ssh", "--phase", "base", "--yes", *flags)
    steps = (sshd.folder / ".slipway" / "pods").glob
    found = until(lambda: list(steps("*/work/runs/base/metrics.jsonl")), "a step of training")
    os.killpg(launch.pid, signal.SIGKILL)
    launch.communicate()
    return found[0].parents[3].name


def keeper(world: World, run: str) -> Identity | None:
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        return journal.leases.holder(keeper_lease(run))


def losses(pod) -> dict[int, float]:
    lines = (pod / "work" / "runs" / "base" / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def kill_guard_and_agent(pod) -> None:
    both = [
        Identity(**json.loads((pod / "state" / f"{role}.json").read_text())["identity"]) for role in ("guard", "agent")
    ]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # Stop both first: each restarts the other.
        for one in both:
            send(one, number)


# Two minutes; in daily runs tests/infra/runs/test_keeper.py covers the decisions and closed terminals.
@pytest.mark.timeout(300)
def test_keeper_takes_over_alone_and_killed_processes_return(world, sshd, stock, tmp_path):
    world.take(stock)
    run = launch_without_launcher(world, sshd, "--steps", "100")
    first = world.begin("keep", run)
    holder = until(lambda: keeper(world, run), "a keeper")
    assert holder.pid == first.pid
    assert world.json("keep", run) == {"run": run, "state": "kept", "keeper": first.pid}
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    second = world.begin("keep", run)
    until(lambda: keeper(world, run), "another keeper")
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=60)
    # CPython dies of the signal when the signal arrives during exec() of a text, as in the creation of a dataclass.
    assert second.returncode in (130, -signal.SIGINT) and "the supervisor" in said and "inv supervisor" in said
    third = until(lambda: keeper(world, run), "the supervisor")
    assert third.pid != second.pid
    assert send(third, signal.SIGKILL)
    until(lambda: keeper(world, run) is None, "its end")
    fourth = world.json("supervisor")  # The next command starts a new supervisor.
    assert fourth["state"] == "running" and fourth["pid"] != third.pid
    until(lambda: world.json("supervisor")["runs"] == [run], "that it keeps the run")
    pod = sshd.folder / ".slipway" / "pods" / run
    kill_guard_and_agent(pod)
    until(lambda: keeper(world, run) is None, "it has brought the run to its end")
    until(lambda: world.json("supervisor")["state"] == "not needed", "that nothing is left for it")
    (row,) = world.json("status")
    assert (row["state"], row["recoveries"]) == ("succeeded", 1)
    undisturbed = World(tmp_path / "undisturbed", dict(ONE_THREAD))
    undisturbed.take(stock)
    name = undisturbed.json("launch", "--phase", "base", "--steps", "100", "--yes")["run"]
    assert losses(pod) == losses(undisturbed.folder / "pods" / name)
    assert losses(pod).keys() == set(range(1, 101))
    sshd.stop()  # All files are local.
    assert world.json("status")[0]["state"] == "succeeded"
    assert "bits per byte" in world.inv("logs", run, "--file", "base")
    assert world.json("keep", run)["state"] == "over"
    sshd.start()


@pytest.mark.timeout(200)
def test_closed_terminal_leaves_a_keeper(world, sshd, stock):
    world.take(stock)
    controller, terminal = pty.openpty()
    words = ["launch", "--provider", "ssh", "--phase", "base", "--steps", "200", "--no-accept", "--yes"]
    launch = subprocess.Popen(
        [sys.executable, "-m", "invoke", *words],
        cwd=ROOT,
        env=world.environ,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    drained = threading.Thread(target=drain, args=(controller,), daemon=True)
    drained.start()
    pods = sshd.folder / ".slipway" / "pods"
    until(lambda: world.steps_at_work(pods), "it is at work")
    run = until(lambda: [one["run"] for one in world.json("status") if one["state"] == "running"], "a run")[0]
    until(lambda: (holder := keeper(world, run)) and holder.pid == launch.pid, "its launch as keeper")
    os.kill(launch.pid, signal.SIGHUP)  # Like a closed terminal.
    os.close(controller)
    launch.wait(60)
    until(lambda: (holder := keeper(world, run)) and holder.pid != launch.pid, "a keeper in the background")
    world.inv("down", run)


@pytest.mark.timeout(200)
def test_terminal_closed_between_hand_over_and_first_check_leaves_a_keeper(world, stock):
    world.take(stock)
    words = ["launch", "--provider", "ssh", "--phase", "base", "--steps", "200", "--no-accept", "--yes"]
    launch = subprocess.run(
        [sys.executable, "-c", source("hung_up_after_hand_over"), *words],
        cwd=ROOT,
        text=True,
        env=world.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=150,
    )
    assert launch.returncode == 128 + signal.SIGHUP, launch.stderr
    (run,) = [row["run"] for row in world.json("status")]
    until(lambda: keeper(world, run), "a keeper, which nobody has asked for")
    world.inv("down", run)


@pytest.mark.timeout(200)
def test_launch_killed_at_the_hand_over_keeps_the_code_for_a_new_machine(world, stock):
    world.take(stock)
    words = ["launch", "--provider", "ssh", "--phase", "base", "--steps", "200", "--no-accept", "--yes"]
    launch = subprocess.run(
        [sys.executable, "-c", source("killed_at_hand_over"), *words],
        cwd=ROOT,
        env=world.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=150,
    )
    assert launch.returncode == -signal.SIGKILL
    (run,) = [row["run"] for row in world.json("status")]
    assert (world.folder / "runs" / run / "kept" / "code" / "trainer").is_dir()
    world.inv("down", run)


def drain(descriptor: int) -> None:
    """Read until the other end is closed."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass
