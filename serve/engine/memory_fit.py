"""The estimate of a model's memory, before an engine is started or a machine rented: refused with numbers.

    weights   what the safetensors files hold, in the dtype that the engine keeps
    cache     keys and values: 2 x layers x heads x width x bytes for each token; at least one request of full length
    engine    the programs themselves: measured on a CPU; for a GPU an estimate, as there was none to measure on

In: a model, the options of its engine, the memory that there is. Out: a Room, or UsageError that says what would
fit.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent import host
from infra.errors import UsageError
from serve.engine import models
from serve.engine.options import Tuning
from store.artifacts import model_files

GB = 10**9
STORED = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes, by a config's word for its weights
FLOATS = {"F64", "F32", "BF16", "F16"}
PROCESSES_BYTES = int(1.9 * GB)  # three of them on a CPU, without weights and cache
GPU_BYTES = int(2.5 * GB)  # on each GPU: CUDA, its graphs, the activations of a batch


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory that a model needs: bytes on each GPU, or of the machine where there is none."""

    weights: int
    cache: int
    """Cache for the requests that must fit: one of `tokens` tokens."""
    engine: int
    tokens: int
    per_token: int
    """Bytes of cache per token; 0 = the config does not say."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.engine

    def longest(self, there: int) -> int:
        """Return the tokens of a request that fits into `there` bytes beside all else; 0 = not even one."""
        left = there - self.weights - self.engine
        return max(0, min(self.tokens, left // self.per_token)) if self.per_token else 0


def needed(model: str | Path, engine: str, tuning: Tuning) -> Room:
    """Return the memory of a model in a folder, or elsewhere (`hf://`, `s3://`, `gs://`), of which little is fetched.

    Raises UsageError when it cannot be read as a model, StoreError when it cannot be reached.
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
    """Return the memory of a remote model, by its config and the sizes of its files."""
    config, weights = models.sketch(uri)
    stored = config.get("dtype") or config.get("torch_dtype")
    if stored in STORED and not config.get("quantization_config"):
        weights = weights * (4 if tuning.dtype == "float32" else 2) // STORED[stored]
    return _room(config, weights, engine, tuning)


def _room(config: dict[str, Any], weights: int, engine: str, tuning: Tuning) -> Room:
    config = config.get("text_config") or config  # models that also see have it there
    per_token = _token_bytes(config, 4 if tuning.dtype == "float32" else 2)
    tokens = tuning.max_model_len or int(config.get("max_position_embeddings") or 0)
    if engine == "vllm-cpu":
        cache = max(tuning.cpu_cache_bytes, tokens * per_token)
        return Room(weights=weights, cache=cache, engine=PROCESSES_BYTES, tokens=tokens, per_token=per_token)
    gpus = tuning.num_gpus
    shared = math.ceil(per_token / gpus)  # each has its heads' part
    cache = max(tuning.kv_cache_bytes, tokens * shared)
    return Room(weights=weights // gpus, cache=cache, engine=GPU_BYTES, tokens=tokens, per_token=shared)


def check(model: str | Path, engine: str, tuning: Tuning, there: int | None) -> None:
    """Raise UsageError when the model does not fit, with what would; else as `needed` does.

    there: bytes for the engine, of each GPU or of this machine; None = it is not known, and nothing is refused.
    """
    room = needed(model, engine, tuning)
    if there is None:
        return
    if engine == "vllm-cpu" and room.tokens * room.per_token > tuning.cpu_cache_bytes:
        longest = tuning.cpu_cache_bytes // room.per_token
        raise UsageError(
            f"{model}: a request of {room.tokens:,} tokens needs {room.tokens * room.per_token / GB:.2f} GB of cache,"
            f" and the cache has {tuning.cpu_cache_bytes / GB:.2f} GB; set kv_cache_bytes to"
            f" {room.tokens * room.per_token}, or max_model_len to at most {longest:,}"
        )
    fits(str(model), room, engine, tuning, there)


def fits(what: str, room: Room, engine: str, tuning: Tuning, there: int) -> None:
    """Raise UsageError when `what`, a model, needs more than `there`: bytes as in `check`."""
    if room.total <= there:
        return
    where = "this machine" if engine == "vllm-cpu" else f"each of {tuning.num_gpus} GPUs" if tuning.num_gpus > 1 else (
        "the GPU"
    )  # fmt: skip
    longest = room.longest(there)
    help = [f"max_model_len of at most {longest:,}"] if engine != "vllm-cpu" and longest >= 256 else []
    help += [f"--gpu with more memory, or num_gpus {2 * tuning.num_gpus}"] if engine == "vllm" else ["a larger machine"]
    raise UsageError(
        f"{what} does not fit: it needs {room.total / GB:.1f} GB of {where} (weights {room.weights / GB:.1f}, cache"
        f" {room.cache / GB:.1f} for {room.tokens:,} tokens, engine {room.engine / GB:.1f}), and there is"
        f" {there / GB:.1f} GB; it would with {', or '.join(help)}"
    )


def here(engine: str, tuning: Tuning) -> int | None:
    """Return the bytes for an engine on this machine: of the smallest GPU, or of free memory. None = unknown."""
    if engine == "vllm-cpu":
        return _free()
    gpus, _ = host.nvidia()
    sizes = [gpu["memory_bytes"] for gpu in gpus if gpu["memory_bytes"]]
    if len(sizes) < tuning.num_gpus:
        raise UsageError(f"{tuning.num_gpus} GPUs are needed, and this machine has {len(sizes)}; see: nvidia-smi")
    return int(min(sizes) * tuning.gpu_share)


def _free() -> int | None:
    """Return the free memory of the machine, or what a container may still take of it."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        most = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        found += [int(most) - int(used)] if most.isdigit() else []
    except OSError:  # another system, or another kind of container
        pass
    return min(found, default=None)


def _token_bytes(config: dict[str, Any], width: int) -> int:
    """Return the bytes of keys and values per token; 0 where the model does not keep them so."""
    try:
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return 2 * int(config["num_hidden_layers"]) * int(config.get("num_key_value_heads") or heads) * size * width
    except (KeyError, TypeError, ValueError):
        return 0


def _kept_bytes(file: Path, dtype: str) -> int:
    """Return the bytes of the tensors in one file, as an engine keeps them: floats in `dtype`, others as they are.

    Raises Unreadable.
    """
    width = 4 if dtype == "float32" else 2
    return sum(
        math.prod(one.shape) * width if one.dtype in FLOATS else one.num_bytes
        for one in model_files.header(file).values()
    )
