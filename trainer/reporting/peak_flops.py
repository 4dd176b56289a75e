"""How fast a device could multiply at most: what the utilisation of a training (MFU) is a share of.

In: the machine. Out: a `Peak`, floating point operations per second of one process's device, and where the number is
from. A GPU's is its data sheet's for dense bfloat16 products, whatever the phase computes in, so that runs compare. A
CPU has no such sheet: a product of matrices is timed. Called once by each phase, on the process that tells.
MFU = operations that the model needs / seconds / peak of all devices; the operations are those of
`ModelConfig.flops_per_token`: 6 per matrix parameter and token, and attention without a discount for the causal half;
recomputation counts nothing. Source of the measure: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

import time
from dataclasses import dataclass

import torch

from trainer.device import Machine

# By a part of the device's name, the first that fits; dense bfloat16, NVIDIA's data sheets.
TFLOPS = (
    ("H100 PCIe", 756),
    ("H100 NVL", 835),
    ("H100", 989),
    ("H200 NVL", 835),
    ("H200", 989),
    ("A100", 312),
    ("B200", 2250),
    ("B300", 2250),
    ("L40S", 362),
    ("L40", 181),
    ("RTX A6000", 155),
    ("RTX 3090", 71),
    ("RTX 4090", 165),
    ("RTX 5090", 210),
    ("RTX PRO 6000", 500),
)
SIDE = 768  # of the matrices that a CPU multiplies: a tenth of a second in all
TRIES = 4


@dataclass(frozen=True)
class Peak:
    flops_per_s: float
    source: str  # for people: what the share is of


def of_name(device: str) -> Peak | None:
    """Return the speed of a GPU by the name that it gives itself; None when nobody has written its speed down."""
    for part, tflops in TFLOPS:
        if part.lower() in device.lower():
            return Peak(tflops * 1e12, f"{device}: {tflops} TFLOP/s, dense bfloat16 by its data sheet")
    return None


def of_machine(machine: Machine) -> Peak | None:
    if machine.device.type == "cuda":
        return of_name(torch.cuda.get_device_name())
    found = measured(machine.fast)
    kind = str(machine.fast).removeprefix("torch.")
    return Peak(
        found,
        f"this CPU with {machine.threads} threads: {found / 1e9:,.0f} GFLOP/s, {kind}, measured as the phase began",
    )


def measured(dtype: torch.dtype) -> float:
    """Return the best of a few products of square matrices, operations per second.

    What else runs here makes it less.
    """
    matrix = torch.full((SIDE, SIDE), 0.5, dtype=dtype)
    best = float("inf")
    with torch.no_grad():
        for _ in range(TRIES):
            began = time.perf_counter()
            matrix @ matrix
            best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best
