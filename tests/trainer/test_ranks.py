"""Several processes train as one: the same losses, one writer, and none goes on without the others."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.trainer.conftest import World, finish, tiny
from trainer.config import Keeping

OFTEN = Keeping(save_every=3, keep=3, reserve_bytes=0)
TOLERANCE = 1e-5  # relative, of float32 losses


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def spread(world: World, config, nodes: int, port: int, **making) -> list[subprocess.Popen[str]]:
    """One torchrun per node; each has a work folder of its own, and all but the first a store."""
    started = []
    for rank in range(nodes):
        work = world.work(f"node{rank}")
        work.mkdir(exist_ok=True)
        one = replace(world.making(), **(making if rank == 0 else {"store": making.get("others", str(world.store))}))
        file = world.root / f"node{rank}.json"
        file.write_text(json.dumps({"making": asdict(one), "spec": asdict(config), "keeping": asdict(OFTEN)}))
        environ = {
            **os.environ, "SLIPWAY_WORK": str(work), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "SLIPWAY_NODE_RANK": str(rank), "SLIPWAY_NUM_NODES": str(nodes), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "SLIPWAY_RECORDS": str(world.root / f"node{rank}.jsonl"),
        }  # fmt: skip
        words = [sys.executable, "-m", "trainer.spread", "-m", "trainer", config.phase, "--config", str(file)]
        process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        world.started.append(process)
        started.append(process)
    return started


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_two_nodes_have_the_losses_of_one_and_the_first_alone_writes(world, port):
    config = tiny(steps=12, rows=5, micro_rows=1, dtype="float32")
    alone = world.start(config, OFTEN, replace(world.making(), name="base_checkpoints/alone"), work="alone")
    nodes = spread(world, config, 2, port)
    for code, words in (finish(alone), *map(finish, nodes)):
        assert code == 0, words
    ours, theirs = (losses(world.store / "base_checkpoints" / name) for name in ("tiny", "alone"))
    assert len(ours) == 12 and ours == pytest.approx(theirs, rel=TOLERANCE)
    assert not (world.work("node1") / "checkpoints").exists() or not list(world.work("node1").rglob("step-*"))
    assert not (world.root / "node1.jsonl").exists()
