"""The options of an engine: one record, in the words of no engine. Checks itself; raises ValueError."""

from dataclasses import dataclass

GIB = 1 << 30
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The options of an engine; a service file sets them under `slipway: engine:`."""

    max_model_len: int = 0
    """Tokens of a prompt and its answer at most; 0 = as many as the model was trained for."""
    max_seqs: int = 0
    """Requests computed at once; 0 = as the engine chooses."""
    max_queued: int = 64
    """Requests that may wait; the next is told that the engine is busy, and the gateway asks elsewhere."""
    shutdown_s: int = 60
    """Seconds after SIGTERM during which streams go on."""
    num_gpus: int = 1
    """GPUs that hold the model together."""
    gpu_share: float = 0.9
    """Share of each GPU's memory that the engine takes."""
    kv_cache_bytes: int = 0
    """Bytes for keys and values; 0 = the rest of a GPU, or 1 GiB on a machine without one."""
    threads: int = 1
    """Threads of an engine on a CPU; several replicas share a machine's cores."""
    dtype: str = "auto"
    """Dtype of weights and activations: auto (16 bits), bfloat16, float16, float32."""
    tool_parser: str = ""
    """Format of the model's tool calls, as vLLM names it: hermes for Qwen's; "" = it calls no tools."""
    eager: bool | None = None
    """Run without torch.compile, which starts sooner and answers slower. None = only on a CPU."""

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
