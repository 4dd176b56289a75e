"""Speed and memory options of a training phase: compilation, float8, activation recomputation and attention kernels.

`training_setup` configures a decoder for the duration of training. Results change by rounding only, except with float8,
which a phase must request.
"""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from data.events import emit
from trainer.config import PhaseConfig
from trainer.device import Machine
from trainer.errors import Refused
from trainer.model import float8
from trainer.model.attention import has_varlen
from trainer.model.decoder import Decoder, Linear

KERNELS, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
HOPPER, CUDNN_FIRST = 9, (9, 10)  # compute capability
FLASH_3 = "flash_attn_interface"  # import name of FlashAttention 3
LEAST_THREADS = 2  # on a single thread, compilation takes twice as long and costs more than a phase saves


@contextmanager
def training_setup(
    model: Decoder, config: PhaseConfig, machine: Machine, frozen: Sequence[Decoder] = ()
) -> Iterator[None]:
    """Configure the model and the frozen models for training inside the block, and restore them afterwards.

    Raises Refused when this machine lacks float8 support or a working compiler.
    """
    if config.dtype == "float8" and (problem := float8.problem(machine.device)):
        raise Refused(f"{config.phase}: {problem}")
    if attends_by_flex(config, machine) and (problem := compiler_problem("cuda")):
        raise Refused(f"{config.phase}: on a GPU the attention of this phase must be compiled, but {problem}")
    compiled = is_compiled(config, machine)
    before = model.shape
    model.shape = replace(model.shape, z_loss=config.optimizer.z_loss, compiled=compiled)
    model.recompute = config.recompute and not config.keep_products
    for block in model.blocks:
        block.keeps_products = config.recompute and config.keep_products
    matrices = [one for one in model.model.layers.modules() if isinstance(one, Linear)]
    for one in matrices:
        one.in_float8 = config.dtype == "float8" and float8.fits(*one.weight.shape)
        if one.in_float8 and not hasattr(one.weight, "to_local"):  # a sharded weight is gathered per pass
            one.float8_weight = float8.Weight.from_tensor(one.weight)
    model.held = [one for one in matrices if one.float8_weight is not None]
    blocks = [block for one in (model, *frozen) for block in one.blocks]
    if compiled:
        for block in blocks:  # all blocks share a code object: a single compilation
            block.compile(dynamic=not config.reads_text)  # a resumed run sees lengths in a different order
    try:
        with fast_attention(machine, config.deterministic, has_one_shape=config.reads_text):
            yield
    finally:
        model.shape, model.recompute = before, False
        for block in model.blocks:
            block.keeps_products = False
        for one in matrices:
            one.in_float8, one.float8_weight = False, None
        model.held = ()
        for block in blocks:
            block._compiled_call_impl = None


@contextmanager
def fast_attention(machine: Machine, deterministic: bool, has_one_shape: bool = True) -> Iterator[str]:
    """Prefer the fastest attention kernel of a Hopper or Blackwell GPU inside the block; yield the kernel's name.

    Hopper uses FlashAttention 3 if installed; Hopper and Blackwell otherwise use cuDNN, unless disabled with
    TORCH_CUDNN_SDPA_ENABLED=0. Unsupported inputs fall back to the next backend. Yield "" for PyTorch's default order.
    These kernels sum in a nondeterministic order and stay off with `deterministic`.

    has_one_shape: all rows have equal length. cuDNN builds a plan per length and supports not all lengths.
    """
    from torch.nn import attention

    major = torch.cuda.get_device_capability(machine.device)[0] if machine.device.type == "cuda" else 0
    if major == HOPPER and not deterministic and importlib.util.find_spec(FLASH_3):
        try:
            attention.activate_flash_attention_impl("FA3")
        except (ImportError, OSError, RuntimeError) as error:
            emit("note", text=f"{FLASH_3} is installed but not usable: {error}")
        else:
            try:
                yield "FA3"
            finally:
                attention.restore_flash_attention_impl()
            return
    has_cudnn = major in CUDNN_FIRST and torch.backends.cuda.cudnn_sdp_enabled()
    if not has_cudnn or deterministic or not has_one_shape:
        yield ""
        return
    by = attention.SDPBackend
    with attention.sdpa_kernel([by.CUDNN_ATTENTION, by.FLASH_ATTENTION, by.EFFICIENT_ATTENTION, by.MATH], True):
        yield "cuDNN"


@contextmanager
def compile_cache(folder: Path) -> Iterator[None]:
    """Set the compile cache of this process to `folder` inside the block; empty the folder after a killed user.

    The compiler trusts every cached file. A file half linked at a kill would fail every later start.
    """
    in_use = folder / "in-use"
    if in_use.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    in_use.touch()
    before = os.environ.get(KERNELS)
    os.environ[KERNELS] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(KERNELS)
        if before is not None:
            os.environ[KERNELS] = before
        in_use.unlink()


@contextmanager
def kernels_of_node(folder: Path) -> Iterator[None]:
    """Set the GPU compile caches to `folder` inside the block, shared by all processes of a node and kept across kills.

    Triton and Inductor write a kernel to a temporary file and rename, with code, version and GPU in the key. A partial
    kernel is therefore never loaded, and concurrent processes do not conflict.
    """
    places = {KERNELS: folder, TRITON: folder / "triton"}
    folder.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in places}
    os.environ.update({name: str(place) for name, place in places.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def uncompiled(model: Decoder) -> Iterator[None]:
    """Run the blocks uncompiled and without cuDNN inside the block, for shapes not worth a compilation or a plan."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    compiled = [block._compiled_call_impl for block in model.model.layers]
    for block in model.model.layers:
        block._compiled_call_impl = None
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], True):
            yield
    finally:
        for block, call in zip(model.model.layers, compiled, strict=True):
            block._compiled_call_impl = call


def attends_by_flex(config: PhaseConfig, machine: Machine) -> bool:
    """Return whether a phase uses flex attention on this machine; flex attention is compiled even in eager blocks."""
    if machine.device.type != "cuda":
        return False
    in_documents = config.document_masks or config.is_packed("cuda")
    by_bounds = in_documents and has_varlen(machine.device, machine.dtype(config), config.model.head_dim)
    return config.has_own_mask or in_documents and not by_bounds


def is_compiled(config: PhaseConfig, machine: Machine) -> bool:
    """Return whether to compile the blocks; the decision is equal at every start of a run.

    Raises Refused without a working compiler when `compile` is `always`, and on GPUs. On a CPU only emit a note.
    """
    kind = machine.device.type
    units = max(machine.threads, LEAST_THREADS) if kind == "cpu" else 1
    # On a CPU an `OwnAttention` mask works on parts whose sizes change with the batch: tracing the parts took 22
    # minutes for the phase dlm of the profile smoke.
    is_slow_to_trace = kind == "cpu" and config.has_own_mask
    if not config.should_compile(kind, units) or config.compile == "auto" and is_slow_to_trace:
        return False
    problem = compiler_problem(kind)
    if not problem:
        return True
    if config.compile == "always":
        raise Refused(f"{config.phase}: compile=always is set, but {problem}")
    if kind == "cuda":  # GPU time is too expensive for an accidental slowdown
        raise Refused(
            f"{config.phase}: {problem}, so each step would take a third to a half longer. Install the package, or use "
            f"--set {config.phase}.compile=never"
        )
    emit("note", text=f"{config.phase}: the model is not compiled and trains some 15 % slower: {problem}")
    return False


def compiler_problem(kind: str) -> str:
    """Return the missing requirement of torch.compile on this machine in words, or "" when complete."""
    if kind == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            return "triton is not installed (package triton, in the version that PyTorch requires)"
        named = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]  # same search order as Triton
        if not any(map(shutil.which, named)):
            return f"a C compiler is missing ({', '.join(named)}; package gcc; or set CC)"
    else:
        compiler = os.environ.get("CXX") or "g++"
        if not shutil.which(compiler):
            return f"a C++ compiler is missing ({compiler}; package g++; or set CXX)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are not installed (Python.h; package python3-dev)"
    return ""
