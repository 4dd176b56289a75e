"""Options of an engine, in terms of no particular engine. The record validates itself; raises ValueError."""

from dataclasses import dataclass

GIB = 1 << 30
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Options of an engine, set in a service file under `slipway: engine:`."""

    max_model_len: int = 0
    """Maximum tokens of prompt plus answer; 0 = the context length of the model."""
    max_seqs: int = 0
    """Requests computed at once; 0 = the engine's default."""
    max_queued: int = 64
    """Maximum waiting requests; the engine refuses further requests, and the gateway tries a different replica."""
    shutdown_s: int = 60
    """Seconds for open streams to finish after SIGTERM."""
    num_gpus: int = 1
    """GPUs that share a copy of the model."""
    gpu_share: float = 0.9
    """Share of each GPU's memory that the engine uses."""
    kv_cache_bytes: int = 0
    """Memory for keys and values; 0 = the rest of the GPU, or 1 GiB without a GPU."""
    threads: int = 1
    """Threads of an engine on a CPU; several replicas share the cores of a machine."""
    dtype: str = "auto"
    """Type of weights and activations: auto (16 bits), bfloat16, float16, float32."""
    tool_parser: str = ""
    """Tool call parser, by vLLM's name, such as hermes for Qwen; "" = no tool calls."""
    variants: int = 0
    """Variants of the model (`serve.variants`) computed in one batch; 0 = the engine loads no variants."""
    variant_rank: int = 32
    """Largest rank of a variant: the engine reserves the memory."""
    eager: bool | None = None
    """Run without torch.compile: starts sooner, answers more slowly. None = only on a CPU."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_seqs", "kv_cache_bytes", "variants"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be below 0")
        for name in ("max_queued", "shutdown_s", "num_gpus", "threads", "variant_rank"):
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
