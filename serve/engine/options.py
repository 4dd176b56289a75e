"""Options of an engine, in terms of no particular engine. The record validates itself; raises ValueError."""

from dataclasses import dataclass

GIB = 1 << 30
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Options of an engine, set in a service file under `slipway: engine:`."""

    max_model_len: int = 0
    """Most tokens of a prompt and its answer together; 0 = as many as the model was trained for."""
    max_seqs: int = 0
    """Requests computed at once; 0 = the engine's default."""
    max_queued: int = 64
    """Requests that may wait; further ones are refused, and the gateway tries another replica."""
    shutdown_s: int = 60
    """Seconds that streams may go on after SIGTERM."""
    num_gpus: int = 1
    """GPUs that share one copy of the model."""
    gpu_share: float = 0.9
    """Share of each GPU's memory that the engine uses."""
    kv_cache_bytes: int = 0
    """Memory for keys and values; 0 = the rest of the GPU, or 1 GiB without a GPU."""
    threads: int = 1
    """Threads of an engine on a CPU; several replicas share the cores of a machine."""
    dtype: str = "auto"
    """Type of weights and activations: auto (16 bits), bfloat16, float16, float32."""
    tool_parser: str = ""
    """Format of tool calls, by vLLM's name for it, such as hermes for Qwen; "" = no tool calls."""
    eager: bool | None = None
    """Run without torch.compile: starts sooner, answers more slowly. None = only on a CPU."""

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
        """Return the cache of an engine on a CPU in bytes, rounded up to whole GiB."""
        return -(-(self.kv_cache_bytes or GIB) // GIB) * GIB


PLAIN = Tuning()
