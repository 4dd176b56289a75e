"""A model cut over processes trains, saves and goes on as one that is whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.lives import Tell
from tests.trainer.conftest import TINY, tiny
from tests.trainer.test_checkpoint import FACTS, random_batch
from tests.trainer.together import together
from trainer.checkpoint import Checkpoints
from trainer.config import Keeping, PhaseConfig
from trainer.cut import cut, parts_of
from trainer.loop import Training
from trainer.model import Decoder, initialise
from trainer.ranks import Ranks

EASY = Keeping(save_every=4, keep=9, reserve_bytes=0)
TOLERANCE = 1e-5  # relative, of float32 losses
# 5 rows for 2 and 4 processes, 3 heads and 40 ids for 4: nothing comes out even
ODD = replace(TINY, num_attention_heads=3, num_key_value_heads=1, intermediate_size=50, vocab_size=322)


def config(**changes: Any) -> PhaseConfig:
    given = {"steps": 8, "rows": 4, "micro_rows": 1, "sequence_len": 16, "dtype": "float32", "model": ODD}
    return tiny(**{**given, **changes})


def training(folder: Path, one: PhaseConfig, ranks: Ranks, parallel: str) -> Training:
    """As `PhaseRun` makes it, of batches that come from nowhere."""
    dtype = getattr(torch, one.dtype)
    model = whole = Decoder(one.model, dtype)
    initialise(whole, one.seed)
    more = {}
    if parallel != "ddp" and ranks.size > 1:
        with torch.device("meta"):
            model = Decoder(one.model, dtype)
        more["cut"] = cut(model, parallel, ranks)
        model.to_empty(device="cpu")
        more["cut"].deal(parts_of(model.state_dict()), whole.state_dict() if ranks.is_first else {}, ranks)
    model.recompute = one.recompute
    saved = Checkpoints(folder / "saved", EASY)
    return Training(model, one, random_batch, saved, FACTS, folder / "metrics", ranks, **more)


def run(folder: Path, one: PhaseConfig, size: int, parallel: str = "fsdp", per_node: int = 0) -> list[float]:
    """The losses of all steps of `size` processes."""

    def work(ranks: Ranks, tell: Tell) -> None:
        training(folder, one, ranks, parallel).run()
        tell("done", "")

    assert all("done" in told for told in together(size, work, per_node))
    lines = (folder / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return run(folder, config(), 1), folder


@pytest.mark.parametrize(("size", "parallel"), [(2, "fsdp"), (4, "fsdp"), (4, "hybrid"), (2, "ddp")])
def test_several_processes_have_the_losses_of_one(tmp_path, alone, size, parallel):
    losses = run(tmp_path, config(), size, parallel, per_node=2)
    assert losses == pytest.approx(alone[0], rel=TOLERANCE)
