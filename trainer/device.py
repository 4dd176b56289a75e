"""Selection of the compute device, the fast dtype and the number of CPU threads.

Each program calls `prepare` once, before creating tensors. An existing but unusable GPU is an error, never a fallback
to the CPU: the same work would take 100 times as long at the price of the GPU.

`detect_hardware` -> `Hardware` -> `choose` -> `Machine`
"""

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import torch

from data import processors
from trainer.config import PhaseConfig
from trainer.errors import Refused

M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD = -4, -1, -2  # constants from glibc's malloc.h
GROWTH_BYTES = 64 << 20
MALLOC_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_")
LOOK_S = 30.0  # timeout of nvidia-smi, which is slow with driver problems
VISIBLE, WORKSPACE = "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"
ANSWERING = "SLIPWAY_ANSWERING_DEVICES"  # GPUs of rollout engines, in VISIBLE syntax: trainer.spread


@dataclass(frozen=True)
class Machine:
    device: torch.device
    fast: torch.dtype  # dtype of activations
    threads: int

    @property
    def about(self) -> dict[str, Any]:
        """Return the machine facts that affect the bits of a result, besides inputs and code."""
        units = torch.backends.cpu.get_cpu_capability() if self.device.type == "cpu" else torch.cuda.get_device_name()
        return {"device": self.device.type, "threads": self.threads, "units": units, "torch": torch.__version__}

    def dtype(self, config: PhaseConfig) -> torch.dtype:
        """Return the dtype of activations for a phase, resolving `auto` and `float8` (bfloat16)."""
        named = {"auto": self.fast, "float8": torch.bfloat16}
        return named.get(config.dtype) or getattr(torch, config.dtype)


@dataclass(frozen=True)
class Hardware:
    """The hardware as reported by the operating system, PyTorch and nvidia-smi."""

    threads: int
    has_cuda: bool
    """True if CUDA works."""
    bfloat16: bool
    """True if the device in use multiplies bfloat16 in hardware: on a CPU AVX512_BF16 or AMX."""
    build: str = ""
    """CUDA version of the PyTorch build; "" = the CPU build."""
    gpus: tuple[str, ...] = ()
    """GPUs listed by nvidia-smi, queried only when CUDA does not work."""
    is_hidden: bool = False
    """True if CUDA_VISIBLE_DEVICES is empty or -1."""
    why: str = ""
    """Error message of a failed CUDA initialization."""


def choose(seen: Hardware) -> Machine:
    """Return the device for the given hardware. Raises Refused for an existing but unusable GPU."""
    device = torch.device("cuda" if seen.has_cuda else "cpu")
    if not seen.has_cuda and not seen.is_hidden and (seen.build or seen.gpus):
        there = f"nvidia-smi lists {', '.join(seen.gpus)}" if seen.gpus else "nvidia-smi lists no GPU"
        build = f"is built for CUDA {seen.build}" if seen.build else "is a build for CPUs"
        said = f": {seen.why}" if seen.why else ""
        wanted = "a driver for this CUDA version" if seen.build else "a PyTorch build for CUDA"
        raise Refused(
            f"CUDA does not start, and the trainer does not fall back to the CPU: PyTorch {torch.__version__} {build}, "
            f"{there}{said}. Install {wanted}, use a different machine, or select the CPU with {VISIBLE}= before "
            "the command"
        )
    return Machine(device, torch.bfloat16 if seen.bfloat16 else torch.float32, seen.threads)


def detect_hardware() -> Hardware:
    """Return the hardware of this machine, running nvidia-smi only when CUDA does not work."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or processors.count_usable())
    if torch.cuda.is_available():
        return Hardware(threads, True, torch.cuda.is_bf16_supported(including_emulation=False))
    units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    build, is_hidden = torch.version.cuda or "", os.environ.get(VISIBLE, "unset").strip() in ("", "-1")
    why = ""
    if build and not is_hidden:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            why = str(error).strip().splitlines()[0]
    return Hardware(threads, False, units, build, () if is_hidden else listed_gpus(), is_hidden, why)


def listed_gpus() -> tuple[str, ...]:
    """Return the GPU names from `nvidia-smi -L`, () without the program; a timeout returns a message instead."""
    program = shutil.which("nvidia-smi")
    if not program:
        return ()
    try:
        said = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (f"no answer within {LOOK_S:g} s ({type(error).__name__})",)
    return tuple(line.split(" (UUID")[0].strip() for line in said.stdout.splitlines() if line.startswith("GPU "))


def prepare(deterministic: bool = False) -> Machine:
    """Choose the device and configure PyTorch for reproducible bits: on a CPU always, on a GPU if `deterministic`.

    Raises Refused for an existing but unusable GPU.
    """
    machine = choose(detect_hardware())
    torch.set_num_threads(machine.threads)
    if machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: float32 products with 10-bit mantissas, 8 times as fast
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # local rank from torchrun
        if deterministic:
            os.environ.setdefault(WORKSPACE, ":4096:8")  # required by cuBLAS for deterministic algorithms
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        return machine
    keep_freed_memory()
    # Equals use_deterministic_algorithms(True) without importing the compiler, which takes as long as importing torch.
    torch.set_deterministic_debug_mode("error")
    # A debugging aid costing 6 % of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return machine


def keep_freed_memory() -> bool:
    """Configure glibc's malloc to keep freed tensor memory; return True on success.

    By default glibc maps and unmaps every large tensor, and the kernel clears the pages each time: a tenth of a step.
    Kept memory fragments: the peak of a process grows by up to 5 % and stays there. Do not change a malloc configured
    by the user, and return False for other C libraries (musl, macOS).
    """
    if any(name.startswith(MALLOC_SETTINGS) for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    wanted = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: GROWTH_BYTES}  # -1 = never
    return all([library.mallopt(name, value) for name, value in wanted.items()])
