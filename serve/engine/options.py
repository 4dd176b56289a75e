"""The options of an engine: one record, in the words of no engine. Checks itself; raises ValueError."""

from dataclasses import dataclass

GIB = 1 << 30
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The options of an engine; a service file sets them under `slipway: engine:`."""

    max_model_len: int = 0
    """Tokens of a prompt and its answer; 0 = what the model has learnt."""
    max_seqs: int = 0
    """Requests computed at once; 0 = as the engine chooses."""
    max_queued: int = 64
    """Requests that may wait; the next is told that the engine is busy, and the gateway asks elsewhere."""
    shutdown_s: int = 60
    """For which streams go on after SIGTERM."""
    num_gpus: int = 1
    """That hold the model together."""
    gpu_share: float = 0.9
    """Of each GPU's memory."""
    kv_cache_bytes: int = 0
    """For keys and values; 0 = a GPU's rest, or 1 GiB of a machine without one."""
    threads: int = 1
    """Of an engine on a CPU; several replicas share a machine's cores."""
    dtype: str = "auto"
    """Of weights and activations: auto (16 bits), bfloat16, float16, float32."""
    tool_parser: str = ""
    """In which form the model calls tools, as vLLM names it: hermes for Qwen's; "" = it calls none."""
    eager: bool | None = None
    """Without torch.compile: starts sooner, answers slower. None = on a CPU."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_seqs", "kv_cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be below 0")
        for name in ("max_queued", "shutdown_s", "num_gpus", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; known: {', '.join(DTYPES)}")
        if not 0 < self.gpu_share <= 1:
            raise ValueError(f"gpu_share is {self.gpu_share}; it must be more than 0 and at most 1")

    @property
    def cpu_cache_bytes(self) -> int:
        """Return the cache of an engine on a CPU in bytes: it takes whole GiB."""
        return -(-(self.kv_cache_bytes or GIB) // GIB) * GIB


PLAIN = Tuning()
