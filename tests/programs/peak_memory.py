"""Print the peak bytes of two training steps of a model, alone or as one of several ranks."""

import json
import sys

import numpy as np
import torch

from data.config import load
from trainer.config import PhaseConfig
from trainer.device import prepare
from trainer.loop import accumulate
from trainer.model.decoder import Decoder, initialise
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer
from trainer.parallel.fsdp import WHOLE, cut, parts_of
from trainer.parallel.process_group import joined
from trainer.speed import equipped

LIBRARIES_BYTES = 96 << 20  # of PyTorch, as they are mapped where they have lain for long

config, machine = load(PhaseConfig, json.loads(sys.argv[1])), prepare()
ranks = joined().__enter__()
with torch.device("cpu" if ranks.size == 1 else "meta"):
    model = Decoder(config.model, machine.dtype(config))
if ranks.size == 1:
    initialise(model, 1)
    model.to(machine.device)
    part = WHOLE
else:
    part = cut(model, "fsdp", ranks)
    model.to_empty(device=machine.device)
    for one in parts_of(model.state_dict()).values():
        one.normal_(std=0.02)
optimizer = Optimizer(model, config.optimizer, part)
ids = np.random.default_rng(1).integers(0, config.model.vocab_size, (config.rows, config.sequence_len))
with equipped(model, config, machine):
    for _ in range(2):  # the first has neither gradients nor the optimizer's state at the time of most activations
        batch = {"ids": ids, "targets": np.roll(ids, -1, 1)}
        accumulate(model, batch, config.micro_rows, ids.size, CrossEntropy())
        optimizer.clip()
        optimizer.step(1.0)
if machine.device.type == "cuda":
    print(torch.cuda.max_memory_reserved())
else:
    # of this program alone: getrusage goes on from the peak of the process that started it
    with open("/proc/self/status") as status:
        kilobytes = {
            line.split()[0]: int(line.split()[1]) for line in status if line.startswith(("VmHWM:", "RssFile:"))
        }
    # how many pages of a library the kernel maps at once depends on how its file came into the page cache
    print((kilobytes["VmHWM:"] - kilobytes["RssFile:"]) * 1024 + LIBRARIES_BYTES)
