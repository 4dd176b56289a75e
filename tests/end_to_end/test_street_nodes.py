"""One run over several machines: the same losses as on one machine, with any process killed."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder
from infra.agent.job import PodFolder
from infra.agent.process import find
from infra.agent.state import live_process
from tests.hosts import HOME, Host
from tests.hosts import hosts as hosts
from tests.processes import command_line, in_network
from tests.world import ONE_THREAD, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

BASE = ("--phase", "base", "--yes")
QUICK = {"SLIPWAY_NODE_SILENT_S": "5", "SLIPWAY_NODE_RETURN_S": "10"}
# Activations are bfloat16 on a machine with bfloat16 units, and a product of half the rows is rounded differently.
TOLERANCE = 1e-2  # Relative; float32 is held to 1e-5 in tests/trainer/parallel/test_ranks.py.


@pytest.fixture(scope="module")
def single_node_losses(tmp_path_factory, stock) -> list[float]:
    """Return the losses of the run on one node."""
    world = World(tmp_path_factory.mktemp("alone"), dict(ONE_THREAD))
    world.take(stock)
    assert world.json("launch", *BASE)["state"] == "succeeded"
    return run_losses(world)


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path, dict(QUICK))
    yield one
    one.inv("down", "--all")
    one.check_ended()


def run_losses(world: World) -> list[float]:
    lines = (world.folder / "artifacts" / "base_checkpoints" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 13))
    return [json.loads(line)["loss"] for line in lines]


def pod(world: World, run: str, rank: int) -> PodFolder:
    return PodFolder(world.folder / "pods" / (f"{run}.{rank}" if rank else run))


def victims(folder: PodFolder, what: str) -> list[int]:
    """Return the training processes of a node, or its agent."""
    if what == "agent":
        found = live_process(folder, "agent")
        return [found.pid] if found else []
    wanted = {"worker": b"trainer\0base", "torchrun": b"trainer.spread"}[what]
    token = json.loads(folder.marker.read_text())["token"]
    lines = {one.pid: command_line(one.pid) for one in find(token)}
    return [
        pid for pid, line in lines.items() if wanted in line and (what == "torchrun") == (b"trainer.spread" in line)
    ]


def first_step_is_saved(folder: PodFolder) -> bool:
    return any(folder.work.glob("checkpoints/base-*/step-*/MANIFEST.json"))


@pytest.mark.timeout(300)
def test_two_nodes_have_the_losses_of_one_and_both_succeed(world, single_node_losses):
    commands = world.json("launch", *BASE, "--nodes", "2", "--dry-run")["commands"]
    assert [line.split(":")[0] for line in commands] == ["node 0", "node 1"] and "trainer.spread" in commands[0]
    result = world.json("launch", *BASE, "--nodes", "2")
    assert result["state"] == "succeeded"
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)
    rows = {row["run"]: row["state"] for row in world.json("status")}
    assert rows == {result["run"]: "succeeded", f"{result['run']}.1": "succeeded"}
    assert not any(pod(world, result["run"], 1).work.rglob("step-*"))
    assert world.json("launch", *BASE, "--nodes", "2")["ran"] == []


def killed(world: World, what: str, rank: int) -> None:
    """Kill processes of node `rank` at a save; the run must end like an undisturbed run."""
    launch = world.begin("launch", *BASE, "--nodes", "2", "--json")
    pods = world.folder / "pods"
    run = until(
        lambda: [one.name for one in pods.glob("*/") if "." not in one.name and (one / "state").exists()], "a run"
    )[0]
    until(lambda: first_step_is_saved(pod(world, run, 0)), "a checkpoint")
    for pid in until(lambda: victims(pod(world, run, rank), what), what):
        os.kill(pid, signal.SIGKILL)
    out, err = launch.communicate(timeout=200)
    assert launch.returncode == 0, err
    base = json.loads(out)["steps"][-1]
    assert base["state"] == "done"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "rank"), [("worker", 0), ("worker", 1), ("torchrun", 0), ("torchrun", 1), ("agent", 0), ("agent", 1)]
)
def test_killed_process_of_one_node_costs_only_time(world, single_node_losses, what, rank):
    killed(world, what, rank)
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)


@pytest.mark.timeout(300)
def test_down_ends_all_nodes_and_resume_continues_all(world, single_node_losses):
    run = world.json("launch", *BASE, "--nodes", "2", "--detach")["run"]
    until(lambda: first_step_is_saved(pod(world, run, 0)), "a checkpoint")
    assert world.json("down", run)["ended"] == [run, f"{run}.1"]
    world.check_ended()
    assert world.json("resume", run)["state"] == "succeeded"
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)


# Over SSH, between machines.


def share(host: Host, folder: Path) -> None:
    """Give the home of a host the content of the local home in this folder."""
    if folder.is_relative_to(HOME):
        place = host.folder / "home" / folder.relative_to(HOME)
        place.mkdir(parents=True, exist_ok=True)
        *before, script, name = host.prefix
        host.prefix = [*before, f"mount --bind '{folder}' '{place}'; {script}", name]


@pytest.fixture
def machines(request, tmp_path, hosts):
    """Return a world of two hosts in namespaces, or of the requested number, with existing environments."""
    found = hosts(getattr(request, "param", 2))
    listed = []
    for host in found:
        share(host, cache_folder.default_cache())
        host.options = [
            f"-oSetEnv=SLIPWAY_ENVIRONMENTS={cache_folder.default_cache()} OMP_NUM_THREADS=1 "
            + " ".join(f"{key}={value}" for key, value in QUICK.items())
        ]
        host.stop()
        host.start()
        listed.append(
            {
                "ip": host.address.host,
                "user": host.address.user,
                "identity_file": host.address.key,
                "python": getattr(sys, "_base_executable", sys.executable),
            }
        )
    (tmp_path / "pools.yaml").write_text(json.dumps({"box": {"hosts": listed}}))
    one = World(
        tmp_path,
        {
            "SLIPWAY_POOLS": str(tmp_path / "pools.yaml"),
            "SLIPWAY_PROVIDER": "ssh",
            "SLIPWAY_ACCEPT_FREE_GB": "1",
            "SLIPWAY_ACCEPT_DISK_MB_S": "1",
        },
    )
    yield one, found
    one.inv("down", "--all")


@pytest.mark.timeout(200)
def test_two_machines_have_the_losses_of_one(machines, single_node_losses, stock):
    world, found = machines
    world.take(stock)
    result = world.json("launch", *BASE, "--nodes", "2", "--no-accept")
    assert result["state"] == "succeeded"
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)
    saved = [list((host.folder / "home" / ".slipway").rglob("step-*/MANIFEST.json")) for host in found]
    assert [bool(one) for one in saved] == [True, False]


def pods_on(host: Host) -> Path:
    return host.folder / "home" / ".slipway" / "pods"


def notes(host: Host) -> list[str]:
    """Return the notes of the training on a host."""
    files = pods_on(host).glob("*/state/records/base.jsonl")
    return [line.get("text", "") for file in files for line in map(json.loads, file.read_text().splitlines())]


def processes_on(host: Host) -> list[bytes]:
    """Return the command lines of all processes in the host's network namespace, without the sshd."""
    found = map(command_line, in_network(host.network))
    return [words for words in found if words and b"sshd" not in words]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("machines", [3], indirect=True)
# A minute and a half, mostly waiting; separate tests cover the decisions.
@pytest.mark.parametrize("rank", [0, 1])
def test_lost_machine_is_replaced_and_the_run_continues_from_its_checkpoint(machines, single_node_losses, rank):
    world, found = machines
    lost, copies = found[rank], world.folder / "runs"
    found[1].slow_down(4)  # A step takes a second or more, so the next checks are in time.
    launch = world.begin("launch", *BASE, "--nodes", "2", "--no-accept", "--json")
    place, saved = (pods_on(found[0]), "*/work") if rank else (copies, "*/pod/work")
    until(lambda: list(place.glob(f"{saved}/checkpoints/base-*/step-*/MANIFEST.json")), "a checkpoint")
    lost.cut()
    found[1].speed_up()
    out, err = launch.communicate(timeout=300)
    assert launch.returncode == 0, (out, err)
    result = json.loads(out)
    assert (result["state"], result["recoveries"]) == ("succeeded", 1)
    assert f"node {rank} ({lost.address.host}) has not answered for" in err
    assert any("resuming from step" in note for host in found if host is not lost for note in notes(host)), err
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)
    # The lost machine stays occupied and is named until an answer; the processes have ended by themselves.
    assert processes_on(lost) == []
    name, place = f"{result['run']}.1" if rank else result["run"], f"box/{lost.address.host}"
    rows = world.json("status", name)
    assert sorted(row["state"] for row in rows) == ["lost", "succeeded"]
    assert [f"was on {place}, which stays reserved" in (row["note"] or "") for row in rows].count(True) == 1
    for word in (result["run"], name):
        down = world.run("down", word)
        assert f"{lost.address.host} port" in down.stderr and down.returncode == 1
    assert {row["host"]: row["leased_by"] for row in world.json("pool.list")}[lost.address.host] == name
    lost.restore()
    until(lambda: len(world.json("status", name)) == 1, "its row is ended")
    assert [row["leased_by"] for row in world.json("pool.list")] == [None] * 3
    assert [row["state"] for row in world.json("status", name)] == ["succeeded"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank", [0, 1])
def test_lost_machine_without_a_replacement_ends_the_run_until_it_returns(machines, single_node_losses, rank):
    world, found = machines
    launch = world.begin("launch", *BASE, "--nodes", "2", "--no-accept", "--json")
    saved = (host.folder / "home" / ".slipway" for host in found)
    home = next(iter(saved))
    until(lambda: any(home.glob("pods/*/*/checkpoints/base-*/step-*/MANIFEST.json")), "a checkpoint")
    gone = found[rank]
    gone.cut()
    out, err = launch.communicate(timeout=240)
    assert launch.returncode == 1, (out, err)
    assert f"node {rank} ({gone.address.host}) has not answered for" in json.loads(out)["reason"]
    assert f"no machine can replace node {rank} (box/{gone.address.host})" in json.loads(out)["reason"]
    assert "./inv resume" in err
    gone.restore()
    run = json.loads(out)["run"]
    until(lambda: all(row["state"] != "running" for row in world.json("status")), "all have ended")
    assert world.json("resume", run)["state"] == "succeeded"
    assert run_losses(world) == pytest.approx(single_node_losses, rel=TOLERANCE)
