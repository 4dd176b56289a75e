"""Peak speed of a device, the reference for the utilisation of a training (MFU).

The result is a `Peak`: floating point operations per second of a process's device, with the source of the number. For a
GPU, the number is the data sheet's for dense bfloat16 products, regardless of the phase's dtype, so that runs are
comparable. For a CPU, a matrix product is timed. Each phase calls the module once, on the reporting process. MFU =
operations needed by the model / seconds / peak of all devices; the operations are `ModelConfig.flops_per_token`: 6 per
matrix parameter and token, plus attention without a discount for the causal half; recomputation is not counted. Source
of the measure: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

import re
import time
from dataclasses import dataclass

import torch

from trainer.device import Machine

# The first entry found in the device's name counts; dense bfloat16 with float32 sums, from data sheets.
TFLOPS = (
    ("H100 PCIe", 756),
    ("H100 NVL", 835),
    ("H200 NVL", 835),
    *(("H100", 989), ("H200", 989), ("GH200", 989), ("H800", 989), ("H20", 148)),
    *(("A100", 312), ("A800", 312), ("A30", 165), ("A40", 149.7), ("A10G", 70), ("A10", 125)),
    *(("B200", 2250), ("B300", 2250), ("GB200", 2500), ("GB300", 2500), ("GB10", 125)),
    *(("L40S", 362), ("L40", 181), ("L4", 121)),
    *(("RTX A6000", 155), ("RTX A5000", 111), ("RTX A4500", 95), ("RTX A4000", 77)),
    *(("RTX 6000 Ada", 364), ("RTX 5000 Ada", 261), ("RTX 4000 Ada", 107)),
    *(("RTX PRO 6000", 500), ("RTX 5090", 210), ("RTX 5080", 113)),
    *(("RTX 4090", 165), ("RTX 4080", 97), ("RTX 3090 Ti", 80), ("RTX 3090", 71), ("RTX 3080", 60)),
    *(("MI300X", 1307), ("MI325X", 1307), ("MI250X", 383)),
)
# Multiprocessors of a whole GPU, for GPUs with MIG slices; the name of a slice ends in `... MIG 3g.40gb`.
MULTIPROCESSORS = {
    "A30": 56,
    "A100": 108,
    "A800": 108,
    "H100 PCIe": 114,
    "H100 NVL": 132,
    "H100": 132,
    "H800": 132,
    "H200 NVL": 132,
    "H200": 132,
    "GH200": 132,
    "H20": 78,
    "B200": 148,
    "GB200": 152,
    "B300": 148,
    "RTX PRO 6000": 188,
}
SLICE = re.compile(r"\bMIG\b")
SIDE = 768  # side of the matrices for timing a CPU: a tenth of a second in total
TRIES = 4


@dataclass(frozen=True)
class Peak:
    flops_per_s: float
    source: str  # source of the number, for display


def of_name(device: str, multiprocessors: int = 0) -> Peak | None:
    """Return the peak of a GPU by device name; a MIG slice gets the share of its multiprocessors.

    Returns None for a GPU or a slice missing in the tables.
    """
    for part, tflops in TFLOPS:
        if not re.search(rf"\b{re.escape(part)}\b", device, re.IGNORECASE):
            continue
        sheet = f"{device}: {tflops} TFLOP/s, dense bfloat16 according to the data sheet"
        if not SLICE.search(device):
            return Peak(tflops * 1e12, sheet)
        if not (whole := MULTIPROCESSORS.get(part)) or not 0 < multiprocessors <= whole:
            return None
        return Peak(tflops * 1e12 * multiprocessors / whole, f"{sheet}, {multiprocessors} of {whole} multiprocessors")
    return None


def of_machine(machine: Machine) -> Peak | None:
    if machine.device.type == "cuda":
        about = torch.cuda.get_device_properties(machine.device)
        return of_name(about.name, about.multi_processor_count)
    found = measured(machine.fast)
    kind = str(machine.fast).removeprefix("torch.")
    return Peak(
        found,
        f"this CPU with {machine.threads} threads: {found / 1e9:,.0f} GFLOP/s, {kind}, measured at phase start",
    )


def measured(dtype: torch.dtype) -> float:
    """Return the best speed of a few square matrix products, in operations per second.

    Other load on the machine lowers the result.
    """
    matrix = torch.full((SIDE, SIDE), 0.5, dtype=dtype)
    best = float("inf")
    with torch.no_grad():
        for _ in range(TRIES):
            began = time.perf_counter()
            matrix @ matrix
            best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best
