"""A model sharded over processes trains, saves and resumes like a whole model."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.lives import Tell
from tests.trainer.checkpoints.test_checkpoint import FACTS, random_batch
from tests.trainer.conftest import TINY, tiny
from tests.trainer.parallel.together import together
from trainer import tensor_file
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints
from trainer.checkpoints.saving import Saver
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import Machine
from trainer.loop import Training
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import CrossEntropy
from trainer.objectives.source import StepSource
from trainer.parallel.fsdp import parts_of, shard_model
from trainer.parallel.process_group import Ranks
from trainer.parallel.zero import shard_optimizer_state
from trainer.speed import training_setup

pytestmark = pytest.mark.process

EASY = CheckpointOptions(save_every=4, keep=9, reserve_bytes=0)
TOLERANCE = 1e-5  # Relative, of float32 losses.
# 5 rows for 2 and 4 processes, 3 heads and 40 ids for 4: no division is even.
ODD = replace(TINY, num_attention_heads=3, num_key_value_heads=1, intermediate_size=50, vocab_size=322)


def config(**changes: Any) -> PhaseConfig:
    given = {"steps": 8, "rows": 4, "micro_rows": 1, "sequence_len": 16, "dtype": "float32", "model": ODD}
    return tiny(**{**given, **changes})


def training(
    folder: Path, one: PhaseConfig, ranks: Ranks, parallel: str, keeping: CheckpointOptions = EASY
) -> Training:
    """Return a training made like `PhaseRun`, with synthetic batches."""
    dtype = getattr(torch, one.dtype)
    model = whole = Decoder(one.model, dtype)
    initialize(whole, one.seed)
    more = {}
    if parallel != "ddp" and ranks.size > 1:
        with torch.device("meta"):
            model = Decoder(one.model, dtype)
        more["sharding"] = shard_model(model, parallel.removesuffix("-held"), ranks, is_held=parallel.endswith("-held"))
        model.to_empty(device="cpu")
        more["sharding"].scatter_weights(
            parts_of(model.state_dict()), whole.state_dict() if ranks.is_first else {}, ranks
        )
    elif ranks.size > 1:
        more["sharding"] = shard_optimizer_state(model, ranks)
    model.recompute = one.recompute and not one.keep_products
    for block in model.model.layers:
        block.keeps_products = one.keep_products
    saved = Checkpoints(folder / "saved", keeping)
    return Training(model, one, StepSource(random_batch), saved, FACTS, folder / "metrics", ranks, **more)


def run(
    folder: Path, one: PhaseConfig, size: int, parallel: str = "fsdp", per_node: int = 0, apart: bool = False
) -> list[float]:
    """Return the losses of all steps of `size` processes; apart: no two processes share a disk."""

    def work(ranks: Ranks, tell: Tell) -> None:
        training(folder / str(ranks.rank) if apart and ranks.rank else folder, one, ranks, parallel).run()
        tell("done", "")

    assert all("done" in told for told in together(size, work, per_node))
    lines = (folder / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def single_process_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return run(folder, config(), 1), folder


@pytest.mark.day_cases(2)
@pytest.mark.parametrize(
    ("size", "parallel"), [(2, "fsdp"), (2, "fsdp-held"), (4, "fsdp"), (4, "hybrid"), (2, "ddp"), (3, "ddp")]
)
def test_several_processes_have_the_losses_of_one(tmp_path, single_process_run, size, parallel):
    losses = run(tmp_path, config(), size, parallel, per_node=2)
    assert losses == pytest.approx(single_process_run[0], rel=TOLERANCE)
    parts = 2 if parallel == "hybrid" else size
    assert Checkpoints(tmp_path / "saved", EASY).find_newest().manifest["world"] == parts


def test_checkpoint_of_four_processes_is_resumed_by_two_and_one_bit_for_bit(tmp_path, single_process_run):
    whole, folder = single_process_run
    before = run(tmp_path / "four", config(), 4)
    saved = Checkpoints(tmp_path / "four" / "saved", EASY)
    halfway = saved.steps()[0]
    assert [path.name for path in saved.steps()] == ["step-000000004", "step-000000008"]
    parts = [f"{kind}-rank{rank:05d}.safetensors" for kind in ("model", "optimizer") for rank in range(4)]
    about = json.loads((halfway / "MANIFEST.json").read_text())
    assert sorted(file["path"] for file in about["files"]) == sorted([*parts, "rng-rank00000.safetensors"])
    assert about["world"] == 4
    four = saved.find_newest()
    for size, parallel in ((2, "fsdp"), (1, "ddp"), (2, "ddp")):
        # Resumed at step 4: the following steps, and the newly written checkpoint.
        other = tmp_path / f"{parallel}{size}"
        shutil.copytree(tmp_path / "four", other)
        shutil.rmtree(other / "saved" / "step-000000008")
        assert run(other, config(), size, parallel) == pytest.approx(whole, rel=TOLERANCE)
        # Resumed at the last step: no step remains, and the new save has every bit.
        same = tmp_path / f"same-{parallel}{size}"
        shutil.copytree(tmp_path / "four", same)
        assert resaved(same, size, parallel) == contents(four)
    assert before == pytest.approx(whole, rel=TOLERANCE)


def test_processes_with_a_shared_optimizer_resume_as_one_and_back(tmp_path, single_process_run):
    """And every gradient is on the way to the owner at the end of the backward pass."""
    whole, saved = single_process_run[0], tmp_path / "saved"

    def work(ranks: Ranks, tell: Tell) -> None:
        one, behind = training(tmp_path, config(), ranks, "ddp"), []
        reduced = one.sharding.wait_reduced
        waiting = one.sharding.waiting
        object.__setattr__(one.sharding, "wait_reduced", lambda: behind.append(len(waiting)) or reduced())
        one.run()
        tell("behind", str(sum(behind)))
        tell("state", str(sum(one.nbytes for one in one.optimizer.tensors().values())))

    told = together(2, work)
    assert [one["behind"] for one in told] == ["0", "0"]
    alone_bytes = sum(
        one.nbytes
        for one in Checkpoints(single_process_run[1] / "saved", EASY).find_newest().tensors("optimizer").values()
    )
    assert all(int(one["state"]) < 0.55 * alone_bytes for one in told)
    for size in (1, 2):  # The last steps again, by one process, then by two from the checkpoint.
        steps = sorted(saved.glob("step-*"))
        shutil.rmtree(steps[-1])
        assert run(tmp_path, config(), size, "ddp") == pytest.approx(whole, rel=TOLERANCE)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_compiled_processes_have_the_losses_of_an_uncompiled_process(tmp_path, single_process_run, parallel):
    def work(ranks: Ranks, tell: Tell) -> None:
        torch._dynamo.reset()  # Other tests compiled these before the fork of this process.
        torch._dynamo.utils.counters.clear()
        one = training(tmp_path, config(compile="always"), ranks, parallel)
        with training_setup(one.model, one.config, Machine(torch.device("cpu"), torch.float32, 1)):
            one.run()
        tell("graphs", str(torch._dynamo.utils.counters["stats"]["unique_graphs"]))

    told = together(2, work, timeout_s=300.0)
    assert [one["graphs"] for one in told] == ["2", "2"], "one of a block, one of a slice of the loss"
    lines = (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(single_process_run[0], rel=TOLERANCE)


def test_processes_without_a_common_disk_send_their_parts_to_the_first(tmp_path, single_process_run):
    assert run(tmp_path, config(), 3, apart=True) == pytest.approx(single_process_run[0], rel=TOLERANCE)
    saved = Checkpoints(tmp_path / "saved", EASY)
    assert len(saved.steps()) == 2 and saved.find_newest().manifest["world"] == 3
    assert len(list(saved.steps()[0].glob("optimizer-rank*"))) == 3
    assert not [*tmp_path.glob("[12]/saved/*")]
    shutil.rmtree(saved.steps()[1])
    assert run(tmp_path, config(), 2, apart=True) == pytest.approx(single_process_run[0], rel=TOLERANCE)


def test_full_disk_of_one_process_costs_all_of_them_only_the_save(tmp_path, single_process_run):
    def work(ranks: Ranks, tell: Tell) -> None:
        one, write = training(tmp_path, config(), ranks, "fsdp"), tensor_file.write

        def full(path: Path, *words: Any) -> tensor_file.WrittenFile:
            if "000000004" in str(path) and ranks.rank == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, *words)

        tensor_file.write = full
        one.run()
        tell("failed", str(one.failed_saves))

    assert [told["failed"] for told in together(2, work)] == ["0", "0"]  # In a row: the last save succeeded.
    saved = Checkpoints(tmp_path / "saved", EASY)
    assert [path.name for path in saved.steps()] == ["step-000000008"] and saved.find_newest().manifest["world"] == 2
    assert not list((tmp_path / "saved").glob(".tmp-*"))


def resaved(folder: Path, size: int, parallel: str) -> dict[str, Any]:
    """Return a checkpoint that `size` processes loaded and saved again under a new step."""

    def work(ranks: Ranks, tell: Tell) -> None:
        one = training(folder, config(), ranks, parallel)
        one.saver = Saver(one.checkpoints, ranks)
        one._resume(one.checkpoints.find_newest() if ranks.is_first else None)
        one.step = 9
        one._save()
        one._collect(wait=True)
        tell("done", "")

    together(size, work)
    newest = Checkpoints(folder / "saved", EASY).find_newest()
    assert newest is not None and newest.step == 9 and newest.manifest["world"] == size
    return contents(newest)


def contents(one: Checkpoint) -> dict[str, Any]:
    """Return every tensor, as bytes."""
    return {
        f"{kind}/{name}": (one.tensors(kind)[name].shape, one.tensors(kind)[name].numpy().tobytes())
        for kind in ("model", "optimizer", "rng")
        for name in one.tensors(kind)
    }


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_parameters_outside_of_blocks_are_gathered_in_16_bits_too(tmp_path, tied):
    one = config(dtype="bfloat16", model=replace(ODD, tie_word_embeddings=tied))
    seen: set[torch.dtype] = set()

    class Seen(CrossEntropy):
        def loss(self, model: Decoder, batch: Any) -> Any:
            seen.update((model.head.dtype, model.model.norm.weight.dtype))
            return super().loss(model, batch)

    def work(ranks: Ranks, tell: Tell) -> None:
        made = training(tmp_path, one, ranks, "fsdp")
        made.objective = Seen()
        made.run()
        tell("dtypes", " ".join(map(str, seen)))
        tell("kept", str(made.model.model.norm.weight.dtype))

    told = together(2, work)
    assert [(two["dtypes"], two["kept"]) for two in told] == [("torch.bfloat16", "torch.float32")] * 2


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"recompute": True}, {"recompute": True, "keep_products": True}], ids=str
)
def test_bfloat16_and_recomputation_have_the_effect_of_one_process(tmp_path, changes):
    """bfloat16 also rounds gains during the gather of blocks, so losses are only close to each other."""
    expected = run(tmp_path / "one", config(**changes), 1)
    rel = 5e-3 if "dtype" in changes else TOLERANCE
    assert run(tmp_path / "two", config(**changes), 2) == pytest.approx(expected, rel=rel)
