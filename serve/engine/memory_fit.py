"""Memory estimate of a model, made before an engine starts or a machine is rented. A refusal names the numbers.

    weights   size of the safetensors files, in the dtype that the engine keeps
    cache     keys and values: 2 x layers x heads x width x bytes for each token; at least one request of full length
    variants  reserved slots for variants of the model: both thin matrices of each matrix inside the blocks
    engine    the programs themselves: measured on a CPU; an estimate for a GPU, as no GPU was available to measure

A model, the options of the engine and the available memory give a Room, or a UsageError with settings that would fit.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent import host
from infra.errors import UsageError
from serve import variants
from serve.engine import models
from serve.engine.options import Tuning
from store.artifacts import model_files

GB = 10**9
VLLM_CPU = "vllm-cpu"
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vLLM 0.32.0, CPUAttentionBackend
STORED = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes per weight, by the dtype in a model's config
FLOATS = {"F64", "F32", "BF16", "F16"}
PROCESSES_BYTES = int(1.9 * GB)  # three processes on a CPU, without weights and cache
GPU_BYTES = int(2.5 * GB)  # per GPU: CUDA, CUDA graphs, activations of a batch


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory that a model needs: bytes on each GPU, or of the machine for an engine on the CPU."""

    weights: int
    cache: int
    """Cache for the requests that must fit: a single request of `tokens` tokens."""
    engine: int
    tokens: int
    per_token: int
    """Bytes of cache per token; 0 = unknown from the config."""
    variants: int = 0
    """Slots for variants of the model, used or not; 0 without variants, or for unknown sizes of the matrices."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.variants + self.engine

    def longest(self, there: int) -> int:
        """Return the tokens of the longest request within `there` bytes; 0 = no request fits, or unknown."""
        left = there - self.weights - self.variants - self.engine
        return max(0, min(self.tokens, left // self.per_token)) if self.per_token else 0


def needed(model: str | Path, engine: str, tuning: Tuning) -> Room:
    """Return the memory need of a model in a folder, or at a URI (`hf://`, `s3://`, `gs://`) with little downloaded.

    Raises UsageError for an unreadable model, StoreError for an unreachable store.
    """
    if "://" in str(model):
        return _needed_there(str(model), engine, tuning)
    folder = Path(model)
    try:
        config = model_files.load(folder)
        model_files.check_sizes(config)
        weights = sum(_kept_bytes(file, tuning.dtype) for file in sorted(folder.glob("*.safetensors")))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} cannot be read as a model: {error}") from None
    return _room(config, weights, engine, tuning)


def _needed_there(uri: str, engine: str, tuning: Tuning) -> Room:
    """Return the memory need of a remote model, from the config and the sizes of the files."""
    config, weights = models.remote_config(uri)
    stored = config.get("dtype") or config.get("torch_dtype")
    if stored in STORED and not config.get("quantization_config"):
        weights = weights * (4 if tuning.dtype == "float32" else 2) // STORED[stored]
    return _room(config, weights, engine, tuning)


def _room(config: dict[str, Any], weights: int, engine: str, tuning: Tuning) -> Room:
    if engine == VLLM_CPU and (problem := cpu_problem(config)):
        raise UsageError(f"{problem}; use --engine torch, if Slipway's own engine knows the model, or a GPU")
    config = config.get("text_config") or config  # multimodal models nest the config of the text model
    width = 4 if tuning.dtype == "float32" else 2
    per_token = _token_bytes(config, width)
    slots = tuning.variants * variants.vllm_rank(tuning.variant_rank) * width if tuning.variants else 0
    tokens = tuning.max_model_len or int(config.get("max_position_embeddings") or 0)
    if engine == VLLM_CPU:
        cache = max(tuning.cpu_cache_bytes, tokens * per_token)
        return Room(
            weights=weights,
            cache=cache,
            engine=PROCESSES_BYTES,
            tokens=tokens,
            per_token=per_token,
            variants=slots * _sides(config, 1),
        )
    gpus = tuning.num_gpus
    shared = math.ceil(per_token / gpus)  # each GPU has a part of the heads
    cache = max(tuning.kv_cache_bytes, tokens * shared)
    return Room(
        weights=weights // gpus,
        cache=cache,
        engine=GPU_BYTES,
        tokens=tokens,
        per_token=shared,
        variants=slots * _sides(config, gpus),
    )


def check(model: str | Path, engine: str, tuning: Tuning, there: int | None) -> None:
    """Raise UsageError, with settings that would fit, if the model does not fit; raise the errors of `needed` too.

    `there`: bytes for the engine, of each GPU or of this machine; None = unknown, and every model passes.
    """
    room = needed(model, engine, tuning)
    if there is None:
        return
    if engine == VLLM_CPU and room.tokens * room.per_token > tuning.cpu_cache_bytes:
        longest = tuning.cpu_cache_bytes // room.per_token
        raise UsageError(
            f"{model}: a request of {room.tokens:,} tokens needs {room.tokens * room.per_token / GB:.2f} GB of cache,"
            f" and the cache has {tuning.cpu_cache_bytes / GB:.2f} GB; set kv_cache_bytes to"
            f" {room.tokens * room.per_token}, or max_model_len to at most {longest:,}"
        )
    fits(str(model), room, engine, tuning, there)


def fits(what: str, room: Room, engine: str, tuning: Tuning, there: int) -> None:
    """Raise UsageError when the model `what` needs more than `there` bytes, as in `check`."""
    if room.total <= there:
        return
    where = (
        "this machine"
        if engine == VLLM_CPU
        else f"each of {tuning.num_gpus} GPUs"
        if tuning.num_gpus > 1
        else "the GPU"
    )
    longest = room.longest(there)
    help = [f"max_model_len of at most {longest:,}"] if engine != "vllm-cpu" and longest >= 256 else []
    help += ["fewer slipway.engine.variants, or a lower variant_rank"] if room.variants else []
    help += [f"--gpu with more memory, or num_gpus {2 * tuning.num_gpus}"] if engine == "vllm" else ["a larger machine"]
    of_variants = f"variants {room.variants / GB:.1f}, " if room.variants else ""
    raise UsageError(
        f"{what} does not fit: the model needs {room.total / GB:.1f} GB of {where} (weights {room.weights / GB:.1f}, "
        f"cache {room.cache / GB:.1f} for {room.tokens:,} tokens, {of_variants}engine {room.engine / GB:.1f}), "
        f"but {there / GB:.1f} GB are available. To make the model fit: {', or '.join(help)}"
    )


def available_bytes(engine: str, tuning: Tuning) -> int | None:
    """Return the bytes for an engine here: of the smallest GPU, or free memory. None = unknown. Raises UsageError."""
    if engine == VLLM_CPU:
        return _free()
    gpus, _ = host.nvidia()
    sizes = [gpu["memory_bytes"] for gpu in gpus if gpu["memory_bytes"]]
    if len(sizes) < tuning.num_gpus:
        raise UsageError(f"{tuning.num_gpus} GPUs are needed, and this machine has {len(sizes)}; see: nvidia-smi")
    return int(min(sizes) * tuning.gpu_share)


def _free() -> int | None:
    """Return the free memory of the machine, or of the container if lower; None = unknown."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        most = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        found += [int(most) - int(used)] if most.isdigit() else []
    except OSError:  # a different system or kind of container
        pass
    return min(found, default=None)


def cpu_problem(config: dict[str, Any]) -> str:
    """Return why vLLM cannot run the shape of a model on a CPU; "" for a supported or unknown shape."""
    config = config.get("text_config") or config
    try:
        size = int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return ""
    if size in CPU_HEADS:
        return ""
    return (
        f"vLLM on a CPU does not support attention heads of size {size}; it supports {', '.join(map(str, CPU_HEADS))}"
    )


def _token_bytes(config: dict[str, Any], width: int) -> int:
    """Return the cache bytes per token for keys and values; 0 for a config without attention heads."""
    try:
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * size * width
    except (KeyError, TypeError, ValueError):
        return 0


def _sides(config: dict[str, Any], gpus: int) -> int:
    """Return the sum of inputs and outputs of all matrices inside the blocks, per GPU; 0 for a config without sizes.

    vLLM splits the outputs of the first matrices of attention and MLP, and the inputs of the last.
    """
    try:
        heads, d, f = (int(config[one]) for one in ("num_attention_heads", "hidden_size", "intermediate_size"))
        size = int(config.get("head_dim") or d // heads)
        q, kv = heads * size, int(config.get("num_key_value_heads") or heads) * size
        split = q + 2 * kv + 2 * f + q + f
        return int(config["num_hidden_layers"]) * (7 * d + math.ceil(split / gpus))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0


def _kept_bytes(file: Path, dtype: str) -> int:
    """Return the bytes of the tensors in one file as an engine keeps them: floats in `dtype`, other types unchanged.

    Raises UnusableDocument.
    """
    width = 4 if dtype == "float32" else 2
    return sum(
        math.prod(one.shape) * width if one.dtype in FLOATS else one.num_bytes
        for one in model_files.header(file).values()
    )
