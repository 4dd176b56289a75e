"""The ways in which a phase uses its machine: which dtype, what is compiled, what is computed twice.

In: a decoder, a `PhaseConfig`, the `Machine`. Out: the same decoder, faster or smaller while it trains. Nothing here
changes results by more than rounding, except float8, which a phase must name.
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
FLASH_3 = "flash_attn_interface"  # the module that FlashAttention 3 installs
LEAST_THREADS = 2  # with one thread compiling takes twice as long, too, which is more than it saves a phase


@contextmanager
def equipped(model: Decoder, config: PhaseConfig, machine: Machine, frozen: Sequence[Decoder] = ()) -> Iterator[None]:
    """Set up the model for training while inside, and frozen ones beside it for their part.

    Raises Refused for what this machine cannot do.
    """
    if config.dtype == "float8" and (problem := float8.problem(machine.device)):
        raise Refused(f"{config.phase}: {problem}")
    if attends_by_flex(config, machine) and (problem := compiler_problem("cuda")):
        raise Refused(f"{config.phase}: on a GPU its attention is compiled always, but {problem}")
    compiled = is_compiled(config, machine)
    before = model.shape
    model.shape = replace(model.shape, z_loss=config.optimizer.z_loss, compiled=compiled)
    model.recompute = config.recompute and not config.keep_products
    for block in model.blocks:
        block.keeps_products = config.recompute and config.keep_products
    matrices = [one for one in model.model.layers.modules() if isinstance(one, Linear)]
    for one in matrices:
        one.in_float8 = config.dtype == "float8" and float8.fits(*one.weight.shape)
        if one.in_float8 and not hasattr(one.weight, "to_local"):  # otherwise it is gathered only for its own pass
            one.held = float8.Weight.of(one.weight)
    model.held = [one for one in matrices if one.held is not None]
    blocks = [block for one in (model, *frozen) for block in one.blocks]
    if compiled:
        for block in blocks:  # all blocks are one piece of code: compiled once
            block.compile(dynamic=not config.reads_text)  # otherwise a resumed run would meet lengths in another order
    try:
        with fast_attention(machine, config.deterministic, has_one_shape=config.reads_text):
            yield
    finally:
        model.shape, model.recompute = before, False
        for block in model.blocks:
            block.keeps_products = False
        for one in matrices:
            one.in_float8, one.held = False, None
        model.held = ()
        for block in blocks:
            block._compiled_call_impl = None


@contextmanager
def fast_attention(machine: Machine, deterministic: bool, has_one_shape: bool = True) -> Iterator[str]:
    """Have the quickest attention of a Hopper or Blackwell GPU come first while inside; its name.

    "" = as PyTorch has it. On Hopper it is FlashAttention 3, where somebody has put that into the environment, else
    cuDNN's, unless that is switched off (TORCH_CUDNN_SDPA_ENABLED=0). What it cannot do goes to the next one. None of
    them adds up in the same order each time.

    has_one_shape: all rows are of one length; cuDNN makes a plan for each further one, and has none for some.
    """
    from torch.nn import attention

    major = torch.cuda.get_device_capability(machine.device)[0] if machine.device.type == "cuda" else 0
    if major == HOPPER and not deterministic and importlib.util.find_spec(FLASH_3):
        try:
            attention.activate_flash_attention_impl("FA3")
        except (ImportError, OSError, RuntimeError) as error:
            emit("note", text=f"{FLASH_3} is installed and cannot be used: {error}")
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
def kernels_in(folder: Path) -> Iterator[None]:
    """Keep what is compiled while inside in `folder`, which is emptied first when its last user was killed.

    The compiler takes a file that is there for a whole one; one that was being linked at a kill is not, and every
    later start would fail on it.
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
    """Keep what is compiled for GPUs while inside in a folder that all processes of a node share, over kills too.

    Triton and Inductor write a kernel beside its place and rename it, and look it up by its code, their own version and
    the GPU: half of one is never found, and two processes do not disturb each other.
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
    """Run blocks as they are written while inside: for shapes that are not worth compiling for, nor a plan of cuDNN."""
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
    """Return whether a phase attends by flex attention there, which is compiled even where blocks are not."""
    if machine.device.type != "cuda":
        return False
    in_documents = config.document_masks or config.is_packed("cuda")
    by_bounds = in_documents and has_varlen(machine.device, machine.dtype(config), config.model.head_dim)
    return config.has_own_mask or in_documents and not by_bounds


def is_compiled(config: PhaseConfig, machine: Machine) -> bool:
    """Return whether the blocks are compiled, the same at every start of a run.

    Raises Refused when told to and unable.
    """
    kind = machine.device.type
    units = max(machine.threads, LEAST_THREADS) if kind == "cpu" else 1
    # A CPU attends in blocks by parts whose sizes change with the batch: tracing them took 22 minutes of dlm at smoke.
    is_slow_to_trace = kind == "cpu" and config.has_own_mask
    if not config.pays_to_compile(kind, units) or config.compile == "auto" and is_slow_to_trace:
        return False
    problem = compiler_problem(kind)
    if not problem:
        return True
    if config.compile == "always":
        raise Refused(f"{config.phase}: asked to compile, but {problem}")
    if kind == "cuda":  # at the price of a GPU this should not happen by mistake
        raise Refused(
            f"{config.phase}: {problem}, so each step would take a third to a half longer; install it, or say "
            f"--set {config.phase}.compile=never"
        )
    emit("note", text=f"{config.phase}: not compiled, some 15 % slower: {problem}")
    return False


def compiler_problem(kind: str) -> str:
    """Return what torch.compile lacks on this machine; "" when it works."""
    if kind == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            return "triton is not installed (the package triton, in the version that PyTorch asks for)"
        named = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]  # as Triton looks for one
        if not any(map(shutil.which, named)):
            return f"there is no C compiler here ({', '.join(named)}; the package gcc; CC names another)"
    else:
        compiler = os.environ.get("CXX") or "g++"
        if not shutil.which(compiler):
            return f"there is no C++ compiler here ({compiler}; the package g++; CXX names another)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers are not installed (Python.h; the package python3-dev)"
    return ""
