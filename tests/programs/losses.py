"""Print the losses of four steps of one of several processes as JSON; argv: ddp, fsdp, fsdp-held or hybrid."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.checkpoints.checkpoint import Checkpoints
from trainer.config import CheckpointOptions
from trainer.device import prepare
from trainer.loop import Training
from trainer.model.decoder import initialise, unfilled
from trainer.objectives import Batch
from trainer.objectives.source import StepSource
from trainer.parallel.fsdp import WHOLE, cut, parts_of
from trainer.parallel.process_group import joined
from trainer.parallel.zero import shared
from trainer.recipes import PROFILES
from trainer.speed import equipped

way, machine = sys.argv[1], prepare()
on_gpu = machine.device.type == "cuda"
config = PROFILES["smoke_bits"]().phases["base"]
config = replace(config, rows=8, micro_rows=2, steps=4, dtype="bfloat16" if on_gpu else "float32")
config = replace(config, compile="always" if on_gpu else "never")


def batch(step: int) -> Batch:
    ids = np.random.default_rng([1, step]).integers(0, config.model.vocab_size, (config.rows, config.sequence_len + 1))
    return {"ids": ids[:, :-1], "targets": ids[:, 1:]}


with joined() as ranks, tempfile.TemporaryDirectory() as folder:
    whole = unfilled(config.model, machine.dtype(config), "cpu")
    initialise(whole, 1)
    if way == "ddp":
        model = whole.to(machine.device)
        part = shared(model, ranks) if ranks.size > 1 else WHOLE
    else:
        model = unfilled(config.model, machine.dtype(config), "meta")
        part = cut(model, way.removesuffix("-held"), ranks, is_held=way.endswith("-held"))
        model.to_empty(device=machine.device)
        part.deal(parts_of(model.state_dict()), whole.state_dict() if ranks.is_first else {}, ranks)
    saved = Checkpoints(Path(folder) / "saved", CheckpointOptions(reserve_bytes=0, samples=0))
    with equipped(model, config, machine):
        Training(model, config, StepSource(batch), saved, {}, Path(folder) / "metrics", ranks, part).run()
    if ranks.is_first:
        lines = (Path(folder) / "metrics" / "metrics.jsonl").read_text().splitlines()
        print(json.dumps([json.loads(line)["loss"] for line in lines]))
