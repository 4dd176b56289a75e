"""Several processes train as one: the same losses, one writer, and no process continues without the others."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.config import Input
from data.shards.shards import Writer
from tests.trainer.conftest import TINY, World, finish, make_again, tiny
from trainer import tensor_file
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import Checkpoints, open_final
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.model.decoder import Decoder

pytestmark = [pytest.mark.process, pytest.mark.nightly]

OFTEN = CheckpointOptions(save_every=3, keep=3, reserve_bytes=0)
TOLERANCE = 1e-5  # Relative, of float32 losses.
CONFIG = tiny(steps=12, rows=5, micro_rows=1, dtype="float32", packing="best-fit")


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def spread(world: World, config, port: int, *makings) -> list[subprocess.Popen[str]]:
    """Run one torchrun per node, each with a separate work folder."""
    started = []
    for rank, making in enumerate(makings):
        work = world.work(f"node{rank}")
        work.mkdir(exist_ok=True)
        file = world.root / f"node{rank}.json"
        file.write_text(json.dumps({"making": asdict(making), "spec": asdict(config), "keeping": asdict(OFTEN)}))
        environ = {
            **os.environ,
            "SLIPWAY_WORK": str(work),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "SLIPWAY_NODE_RANK": str(rank),
            "SLIPWAY_NUM_NODES": str(len(makings)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "SLIPWAY_RECORDS": str(world.root / f"node{rank}.jsonl"),
        }
        words = [sys.executable, "-m", "trainer.spread", "-m", "trainer", config.phase, "--config", str(file)]
        process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        world.started.append(process)
        started.append(process)
    return started


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def single_process_losses(inputs, tmp_path_factory):
    """Return the losses of one process."""
    root = tmp_path_factory.mktemp("alone")
    shutil.copytree(inputs[0], root / "store", copy_function=os.link)
    world = World(root / "store", root, inputs[1])
    code, words = finish(world.start(CONFIG, OFTEN))
    assert code == 0, words
    found = losses(world.store / "base_checkpoints/tiny")
    assert len(found) == CONFIG.steps
    return found


def test_two_nodes_have_the_losses_of_one_and_only_the_first_writes(world, port, single_process_losses):
    for code, words in map(finish, spread(world, CONFIG, port, world.making(), world.making())):
        assert code == 0, words
    assert losses(world.store / "base_checkpoints/tiny") == pytest.approx(single_process_losses, rel=TOLERANCE)
    assert not list(world.work("node1").rglob("step-*"))
    assert not (world.root / "node1.jsonl").exists()


def test_sharded_model_of_two_nodes_is_published_like_any_other(world, port, single_process_losses, capfd):
    """Each node has half of the model, and they share no disk; the published model is evaluated, exported and used in a
    chat.
    """
    config = replace(CONFIG, parallel="fsdp")
    for code, words in map(finish, spread(world, config, port, world.making(), world.making())):
        assert code == 0, words
    model, out = world.store / "base_checkpoints/tiny", world.root / "exported"
    assert losses(model) == pytest.approx(single_process_losses, rel=TOLERANCE)
    saved = open_final(model)
    assert saved.manifest["world"] == 2 and len(list(saved.folder.glob("model-rank*"))) == 2
    assert not list(world.work("node1").rglob("step-*"))
    published = tensor_file.read(model / "hf" / "model.safetensors")
    assert published.keys() == set(saved.tensors("model"))
    assert all(torch.equal(one, saved.tensors("model")[name]) for name, one in published.items())
    capfd.readouterr()
    assert main(["eval", "--model", str(model), "--text", str(world.store / "datasets/x/text")]) == 0
    about = json.loads((world.root / "node0.jsonl").read_text().splitlines()[-1])
    assert json.loads(capfd.readouterr().out)["bits_per_byte"] == pytest.approx(about["bits_per_byte"], rel=1e-4)
    assert main(["export", "--model", str(model), "--out", str(out)]) == 0
    assert main(["chat", "--model", str(out), "--prompt", "reads", "--max-tokens", "4"]) == 0
    # The next phase continues from the model, in one process.
    entry = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
    mid = tiny(phase="mid", mixture={"identity": 1.0}, sequence_len=96, steps=2, dtype="float32")
    code, words = finish(world.start(mid, OFTEN, world.making("mid", base=entry)))
    assert code == 0, words


def test_run_of_two_nodes_is_finished_by_one_process_with_the_due_batches(world, port, single_process_losses):
    nodes = spread(world, CONFIG, port, world.making(), world.making())
    world.wait_for_step(4, nodes[0], "node0")
    nodes[0].terminate()  # The signal stops both: they agree on the stop.
    assert [finish(one)[0] for one in nodes] == [75, 75]
    saved = Checkpoints(world.checkpoints("node0"), OFTEN).find_newest()
    cursor = saved.manifest["data_cursor"]
    assert saved.step == cursor["step"] and {"data", "epoch", "group", "row"} < cursor.keys()
    code, words = finish(world.start(CONFIG, OFTEN, work="node0"))
    assert code == 0, words
    assert losses(world.store / "base_checkpoints/tiny") == pytest.approx(single_process_losses, rel=TOLERANCE)
    lines = (world.store / "base_checkpoints/tiny/metrics.jsonl").read_text().splitlines()
    assert all(0 <= json.loads(line)["data_wait_s"] < 60 for line in lines)


def test_aborted_interpreter_does_not_change_the_exit_code_of_a_rank(inputs, tmp_path):
    """Threads of the process group sometimes abort the interpreter, right after the exit of the other side."""

    def ended(size: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        program = f"import atexit, os, runpy, sys; atexit.register(os.abort); sys.argv = {['trainer', *words]};"
        program += "runpy.run_module('trainer', run_name='__main__')"
        environ = {**os.environ, "WORLD_SIZE": size}
        return subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True)

    failing = ["base", "--config", "none"]
    assert [ended(size, failing).returncode for size in ("1", "2")] == [-signal.SIGABRT, 2]
    assert b"trainer base: none: [Errno 2]" in ended("2", failing).stderr
    model = tmp_path / "model"
    export.write(model, TINY, Decoder(TINY).state_dict(), Path(inputs[0]) / "tokenizer")
    done = ended("2", ["export", "--model", str(model), "--out", str(tmp_path / "out")])
    assert done.returncode == 0 and (tmp_path / "out" / "config.json").is_file(), done.stderr.decode()


def test_node_with_different_data_is_refused_by_name(world, port, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(world.store, other, copy_function=os.link)
    writer = Writer(tmp_path / "text" / "train", 1000)
    writer.add("something else")
    writer.finish("test", {})
    make_again(other, tmp_path / "text", world.inputs["text"])
    makings = world.making(), replace(world.making(), store=str(other))
    (first, other_words), (second, words) = map(finish, spread(world, tiny(steps=4), port, *makings))
    assert (first, second) == (75, 2), f"{other_words}\n{words}"
    assert "node 1 differs from node 0: datasets/x/text (" in words
