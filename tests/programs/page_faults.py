"""Print the number of page faults of eight large tensors after prepare()."""

import resource

import torch

from trainer.device import prepare

prepare()


def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.full((16 << 20,), 1.0)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


faults()
print(faults())
