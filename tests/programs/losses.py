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
from trainer.model.decoder import initialize, uninitialized_decoder
from trainer.objectives import Batch
from trainer.objectives.source import StepSource
from trainer.parallel.fsdp import WHOLE, parts_of, shard_model
from trainer.parallel.process_group import join_process_group
from trainer.parallel.zero import shard_optimizer_state
from trainer.recipes import PROFILES
from trainer.speed import training_setup

way, machine = sys.argv[1], prepare()
on_gpu = machine.device.type == "cuda"
config = PROFILES["smoke_bits"]().phases["base"]
config = replace(config, rows=8, micro_rows=2, steps=4, dtype="bfloat16" if on_gpu else "float32")
config = replace(config, compile="always" if on_gpu else "never")


def batch(step: int) -> Batch:
    ids = np.random.default_rng([1, step]).integers(0, config.model.vocab_size, (config.rows, config.sequence_len + 1))
    return {"ids": ids[:, :-1], "targets": ids[:, 1:]}


with join_process_group() as ranks, tempfile.TemporaryDirectory() as folder:
    whole = uninitialized_decoder(config.model, machine.dtype(config), "cpu")
    initialize(whole, 1)
    if way == "ddp":
        model = whole.to(machine.device)
        part = shard_optimizer_state(model, ranks) if ranks.size > 1 else WHOLE
    else:
        model = uninitialized_decoder(config.model, machine.dtype(config), "meta")
        part = shard_model(model, way.removesuffix("-held"), ranks, is_held=way.endswith("-held"))
        model.to_empty(device=machine.device)
        part.scatter_weights(parts_of(model.state_dict()), whole.state_dict() if ranks.is_first else {}, ranks)
    saved = Checkpoints(Path(folder) / "saved", CheckpointOptions(reserve_bytes=0, samples=0))
    with training_setup(model, config, machine):
        Training(model, config, StepSource(batch), saved, {}, Path(folder) / "metrics", ranks, part).run()
    if ranks.is_first:
        lines = (Path(folder) / "metrics" / "metrics.jsonl").read_text().splitlines()
        print(json.dumps([json.loads(line)["loss"] for line in lines]))
