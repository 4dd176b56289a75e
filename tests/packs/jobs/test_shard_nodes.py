"""The example that shards on several nodes: the shards equal the same ranks on one machine, also after kills."""

import os
import signal

import pytest

from data import card
from data.config import TextSpec
from data.merge import merge
from data.shards.pipeline import RunOptions, shard
from data.single_writer import lock_folder
from data.text.inputs import Share
from tests.processes import command_line, pids
from tests.slurm import cluster as cluster
from tests.world import World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900)]
NODES = 2


def write_corpus(folder):
    """Write 8,000 distinct lines in four files."""
    folder.mkdir()
    for number in range(4):
        lines = (f"line {n} says \\ {n * 7919 % 1_000_003}\n" for n in range(number * 2000, (number + 1) * 2000))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def on_one_machine(corpus, folder):
    for rank in range(NODES):
        spec = TextSpec(source=str(corpus), val_ratio=0.0)
        shard(spec, folder, False, RunOptions(workers=1), Share(rank=rank, world=NODES))
    merge(folder)
    card.write(folder)
    return contents(folder)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def share_processes(pod):
    """Return the processes that write the share of a pod."""
    config = os.fsencode(pod / "work" / "share.json")
    return [pid for pid in pids() if command_line(pid).split(b"\0")[-2:-1] == [config]]


def launch(world, corpus, out, *words):
    given = ("-e", f"SOURCE={corpus}", "-e", f"OUT={out}", *words)
    return world.begin("launch", "examples/jobs/shard_nodes.yaml", *given, "-n", "shards", "--yes")


def share_of_node_1(out):
    """Return the folder of the share; a lock on the share makes node 1 wait for the test."""
    return out / Share(rank=1, world=NODES).folder


def finish(process):
    said = "".join(process.communicate(timeout=600))
    assert process.returncode == 0 and "shards succeeded" in said, said


def test_two_nodes_write_the_shards_of_one_machine_also_after_a_kill(tmp_path):
    world, corpus, out = World(tmp_path / "world"), write_corpus(tmp_path / "corpus"), tmp_path / "out"
    pod = world.folder / "pods" / "shards.1"
    with lock_folder(share_of_node_1(out)):
        process = launch(world, corpus, out, "--provider", "local")
        os.kill(until(lambda: share_processes(pod), "node 1 is at work")[0], signal.SIGKILL)
    finish(process)
    assert "restart 1 of 3" in (pod / "logs" / "1-share-run.log").read_text()
    assert contents(out) == on_one_machine(corpus, tmp_path / "one")


@pytest.mark.pack("slurm")
def test_slurm_nodes_restart_after_a_requeue_and_write_the_same_shards(tmp_path, cluster):
    world = World(tmp_path / "world", {"SLIPWAY_CLUSTERS": str(cluster.inventory(tmp_path / "clusters.yaml"))})
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    with lock_folder(share_of_node_1(out)):
        process = launch(world, corpus, out, "--provider", "slurm")
        until(lambda: share_processes(cluster.login.folder / ".slipway" / "pods" / "shards.1"), "node 1 is at work")
        cluster.requeue(*cluster.jobs())
    finish(process)
    assert not cluster.jobs()
    assert contents(out) == on_one_machine(corpus, tmp_path / "one")
