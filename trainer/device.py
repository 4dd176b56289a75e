"""The machine in front of us: where tensors live, which dtype is fast there, how many threads.

Out: `Machine`, chosen from what the hardware says. Each program asks once, before its first tensor. A GPU that is
there and cannot be used is an error: the same work on its CPU takes a hundred times as long, at the price of the GPU.
"""

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import PhaseConfig
from trainer.errors import Refused

M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD = -4, -1, -2  # numbers of glibc's malloc.h
GROWTH_BYTES = 64 << 20
MALLOC_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_")
LOOK_S = 30.0  # time for nvidia-smi, which is slow where the driver is in trouble
VISIBLE, WORKSPACE = "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"
ANSWERING = "SLIPWAY_ANSWERING_DEVICES"  # GPUs that engines of answers have, as VISIBLE spells them: trainer.spread


@dataclass(frozen=True)
class Machine:
    device: torch.device
    fast: torch.dtype  # dtype of activations
    threads: int

    @property
    def about(self) -> dict[str, Any]:
        """Return the facts on which the bits of a result depend beside its inputs and its code."""
        units = torch.backends.cpu.get_cpu_capability() if self.device.type == "cpu" else torch.cuda.get_device_name()
        return {"device": self.device.type, "threads": self.threads, "units": units, "torch": torch.__version__}

    def dtype(self, config: PhaseConfig) -> torch.dtype:
        """Return the dtype of activations."""
        named = {"auto": self.fast, "float8": torch.bfloat16}
        return named.get(config.dtype) or getattr(torch, config.dtype)


@dataclass(frozen=True)
class Hardware:
    """The machine as the hardware and PyTorch report it."""

    threads: int
    has_cuda: bool
    """True if CUDA works."""
    bfloat16: bool
    """True if the device in use multiplies bfloat16 in hardware: on a CPU AVX512_BF16 or AMX."""
    build: str = ""
    """The CUDA that PyTorch was built for; "" = the build for CPUs."""
    gpus: tuple[str, ...] = ()
    """The GPUs that nvidia-smi lists where CUDA does not work."""
    is_hidden: bool = False
    """True if GPUs are hidden by an empty CUDA_VISIBLE_DEVICES."""
    why: str = ""
    """The error of CUDA where it failed to start."""


def choose(seen: Hardware) -> Machine:
    """Return the device for what was seen. Raises Refused for a GPU that is there and cannot be used."""
    device = torch.device("cuda" if seen.has_cuda else "cpu")
    if not seen.has_cuda and not seen.is_hidden and (seen.build or seen.gpus):
        there = f"nvidia-smi lists {', '.join(seen.gpus)}" if seen.gpus else "nvidia-smi lists no GPU"
        build = f"is built for CUDA {seen.build}" if seen.build else "is the build for CPUs"
        said = f": {seen.why}" if seen.why else ""
        wanted = "a driver for that CUDA" if seen.build else "the build of PyTorch for CUDA"
        raise Refused(
            f"CUDA does not start, and the CPU is not used instead: PyTorch {torch.__version__} {build}, "
            f"{there}{said}; install {wanted}, use another machine, or ask for the CPU: {VISIBLE}= before "
            "the command"
        )
    return Machine(device, torch.bfloat16 if seen.bfloat16 else torch.float32, seen.threads)


def look() -> Hardware:
    """Return the hardware of this machine. nvidia-smi is asked only where CUDA does not work."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
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
    """Return the GPUs of which the driver knows, whatever PyTorch can do with them."""
    program = shutil.which("nvidia-smi")
    if not program:
        return ()
    try:
        said = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (f"nothing in {LOOK_S:g} s ({type(error).__name__})",)
    return tuple(line.split(" (UUID")[0].strip() for line in said.stdout.splitlines() if line.startswith("GPU "))


def prepare(deterministic: bool = False) -> Machine:
    """Choose, and set PyTorch up so that equal inputs give equal bits: on a CPU always, on a GPU if `deterministic`.

    Raises Refused for a GPU that is there and cannot be used.
    """
    machine = choose(look())
    torch.set_num_threads(machine.threads)
    if machine.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: what is float32 may be multiplied with 10 bits, 8 x as fast
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # torchrun's number of the process on its machine
        if deterministic:
            os.environ.setdefault(WORKSPACE, ":4096:8")  # else cuBLAS may take another way each time
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        return machine
    keep_freed_memory()
    # the same as use_deterministic_algorithms(True), which also imports the compiler: as slow as importing torch
    torch.set_deterministic_debug_mode("error")
    # a guard for debugging that costs 6 % of a step
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return machine


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory of tensors; return whether it does. Not where it was configured otherwise.

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
