"""The machine in front of us: where tensors live, which dtype is fast there, how many threads.

Out: `Machine`, chosen from what the hardware says. Called once by each program, before the first tensor.
"""

import ctypes
import os
from dataclasses import dataclass

import torch

from trainer.config import PhaseConfig

M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD = -4, -1, -2  # as glibc's malloc.h numbers them
GROWTH_BYTES = 64 << 20
MALLOC_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_")


@dataclass(frozen=True)
class Machine:
    device: torch.device
    fast: torch.dtype  # of activations
    threads: int

    def dtype(self, config: PhaseConfig) -> torch.dtype:
        """Return the dtype of activations."""
        named = {"auto": self.fast, "float8": torch.bfloat16}
        return named.get(config.dtype) or getattr(torch, config.dtype)


def prepare() -> Machine:
    """Choose, and set PyTorch up so that equal inputs give equal bits.

    bfloat16 on a CPU only where it multiplies matrices in hardware (AVX512_BF16, AMX): emulated, it is slow.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # as torchrun numbers the processes of a machine
        fast = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
        return Machine(torch.device("cuda"), fast, threads)
    keep_freed_memory()
    # the same as use_deterministic_algorithms(True), which also imports the compiler: as slow as importing torch
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # a guard for debugging that costs 6 % of a step
    has_units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return Machine(torch.device("cpu"), torch.bfloat16 if has_units else torch.float32, threads)


def keep_freed_memory() -> bool:
    """Have the C library keep what tensors leave behind; whether it does. Not where it was told something else.

    glibc maps every large tensor anew and gives it back at its end, and the kernel must find and clear its pages each
    time: a tenth of a step. What is kept fits less well than new pages: a process takes up to 5 % more at its peak, and
    stays there. Other C libraries (musl, macOS) have no such switch.
    """
    if any(name.startswith(MALLOC_SETTINGS) for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    wanted = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: GROWTH_BYTES}  # -1 = never
    return all([library.mallopt(name, value) for name, value in wanted.items()])
