"""A ternary model and its teacher, both sharded over processes, have the losses of one process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from packs.bits.records.bits_config import BitsConfig
from packs.bits.trainer.objective import Bits
from tests.faults.lives import Tell
from tests.trainer.parallel.test_fsdp import ODD, config, training
from tests.trainer.parallel.together import together
from trainer.model.decoder import Decoder, initialize
from trainer.parallel.fsdp import parts_of, shard_model
from trainer.parallel.process_group import Ranks
from trainer.records.model_config import Ternary

pytestmark = pytest.mark.process

ALL_OF_IT = BitsConfig(
    warmup_steps=3, nats=0.5, divergence=0.5, layers=0.5, relations=10.0, relation_heads=8, saliency=0.2
)
NEAR = 1e-3  # Relative, of the first steps.
FAR = 0.1  # Of later steps: gradients are summed in a different order, and the last bit may round a weight differently.


def teacher(ranks: Ranks, parallel: str) -> Decoder:
    """Return a teacher made like `PhaseRun.load_frozen_model`."""
    model = whole = Decoder(ODD)
    initialize(whole, 3)
    if parallel != "ddp" and ranks.size > 1:
        with torch.device("meta"):
            model = Decoder(ODD).eval().requires_grad_(False)
        part = shard_model(model, parallel, ranks, "hidden")
        model.to_empty(device="cpu")
        part.scatter_weights(parts_of(model.state_dict()), whole.state_dict() if ranks.is_first else {}, ranks)
    return model.eval().requires_grad_(False)


def losses(folder: Path, size: int, parallel: str) -> list[dict[str, float]]:
    one = config(phase="bits3", steps=5, model=replace(ODD, sub_norm=True, ternary=Ternary()), bits=ALL_OF_IT)

    def work(ranks: Ranks, tell: Tell) -> None:
        made = training(folder, one, ranks, parallel)
        made.objective = Bits(ALL_OF_IT, made.model, teacher(ranks, parallel))
        made.run()
        tell("done", "")

    assert all("done" in told for told in together(size, work))
    return [json.loads(line) for line in (folder / "metrics" / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_distil_like_one(tmp_path):
    alone, both = losses(tmp_path / "one", 1, "ddp"), losses(tmp_path / "two", 2, "fsdp")
    for name in ("loss", "nats", "divergence", "layers", "relations", "rounded"):
        ours, theirs = ([step[name] for step in steps] for steps in (both, alone))
        assert ours[:2] == pytest.approx(theirs[:2], rel=NEAR) and ours == pytest.approx(theirs, rel=FAR), name
    assert [round(step["rounded"], 4) for step in alone[:4]] == [0, 0.3333, 0.6667, 1]
    assert all(step[name] > 0 for step in alone for name in ("divergence", "layers", "relations"))
