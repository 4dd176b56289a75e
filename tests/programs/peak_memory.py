"""Print the peak bytes of two training steps of a model and a save, alone or as one of several ranks.

argv: the config as JSON; for several ranks `ddp` or `fsdp`.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

from data.config import load
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.saving import Saver
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import prepare
from trainer.loop import accumulate
from trainer.model.decoder import uninitialized_decoder
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer
from trainer.parallel.fsdp import WHOLE, parts_of, shard_model
from trainer.parallel.process_group import join_process_group
from trainer.parallel.zero import shard_optimizer_state
from trainer.speed import training_setup

LIBRARIES_BYTES = 96 << 20  # of mapped files; the kernel decides how many pages of a file are mapped at once
EVERY_S = 0.001


class Watch(threading.Thread):
    """Record the peak of memory without mapped files; the kernel's own peak includes mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes, self.ended = 0, threading.Event()

    def look(self) -> None:
        """Read the current memory of the process."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)

    def run(self) -> None:
        """Look until the stop; PyTorch lets other threads run during computations."""
        while not self.ended.wait(EVERY_S):
            self.look()

    def stop(self) -> int:
        """Return the peak, bytes."""
        self.ended.set()
        self.join()
        return self.peak_bytes


watch = Watch()
watch.start()

config, machine = load(PhaseConfig, json.loads(sys.argv[1])), prepare()
ranks = join_process_group().__enter__()
is_cut = ranks.size > 1 and sys.argv[2] == "fsdp"
# As a run does.
model = uninitialized_decoder(config.model, machine.dtype(config), "meta" if is_cut else machine.device)
part = WHOLE
if is_cut:
    part = shard_model(model, "fsdp", ranks)
    model.to_empty(device=machine.device)
for one in parts_of(model.state_dict()).values():
    one.normal_(std=0.02)
if ranks.size > 1 and part is WHOLE:
    part = shard_optimizer_state(model, ranks)
optimizer = Optimizer(model, config.optimizer, part)
ids = np.random.default_rng(1).integers(0, config.model.vocab_size, (config.rows, config.sequence_len))
with tempfile.TemporaryDirectory() as folder, training_setup(model, config, machine):
    for step in range(2):  # during the most activations, the first step has neither gradients nor optimizer state
        batch = {"ids": ids, "targets": np.roll(ids, -1, 1)}
        part.clear()
        accumulate(model, batch, config.micro_rows, ids.size, CrossEntropy(), part.prepare_pass)
        optimizer.clip()
        optimizer.step(1.0)
        if not step:
            tensors = {"model": {name: part.local_rows(one) for name, one in model.state_dict().items()}}
            saver = Saver(Checkpoints(Path(folder), CheckpointOptions(reserve_bytes=0)), ranks)
            saver.start(1, {**tensors, "optimizer": optimizer.tensors()}, {})
            while saver.is_busy:
                saver.wait(0.1 if ranks.size > 1 else None)
                saver.collect()
if machine.device.type == "cuda":
    print(torch.cuda.max_memory_allocated())
else:
    print(watch.stop() + LIBRARIES_BYTES)
