"""Estimates of training memory by component, and the largest micro-batch that fits. No torch import.

`PhaseConfig` and a memory size -> `estimate` -> `Memory` in bytes -> `largest` -> `Fit`. Every GPU holds the whole
model and a shard of the optimizer state (`sharers`), or a shard of both (`parts`). The activation terms count the
tensors saved for the backward pass, by the decoder or, on a GPU, by the compiler; tests compare the sums with measured
peaks. On a CPU, fragmentation in glibc's malloc (`trainer.device`) adds up to a quarter of the sum.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from trainer.config import PhaseConfig

SLICE_TOKENS = {"cpu": 512, "cuda": 4096}  # tokens per slice of logits: trainer.model.losses
SIZES = tuple(gb << 30 for gb in (16, 24, 32, 40, 48, 80, 96, 141, 180, 192, 288))  # memory sizes of rentable GPUs
SPARE = 0.85  # usable share after an out-of-memory error: the estimate was too low
USABLE = 0.92  # usable share of a GPU's memory; fragmentation takes the rest
SQUARES = 1 << 24  # maximum number of attention scores for `PartwiseAttention` on a CPU: trainer.model.attention
# PyTorch, kernel code, workspaces and per-thread caches.
FRAMEWORK_BYTES = {
    "cpu": 320 << 20,
    "cuda": 1 << 30,
}
TALK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}  # communication buffers, such as those of NCCL
MUON_AT_ONCE = 1 << 26  # elements per orthogonalization on a GPU: trainer.optim


class ModelLayout(TypedDict, total=False):
    """The layout of a model over several GPUs, as keyword arguments of `estimate`."""

    parts: int
    sharers: int


@dataclass(frozen=True)
class Memory:
    """Peak memory in bytes, by component."""

    weights: int
    """Float32 parameters, and copies in the dtype of activations kept until the backward pass."""
    gradients: int
    optimizer: int
    activations: int
    """Tensors saved by the blocks for the backward pass, and temporary tensors of the backward pass."""
    logits: int
    """One slice of logits with gradients, and the accumulated gradient of the head."""
    framework: int
    frozen: int = 0
    """Frozen models (teacher, reference), in the dtype of activations."""
    update: int = 0
    """Optimizer update beyond the memory freed by the passes: Muon products, gathered parameters."""
    exchange: int = 0
    """Communication buffers."""
    saving: int = 0
    """Checkpoint copy in CPU training; GPU training keeps the copy in host memory, see `host_bytes`."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def in_allocator(self) -> int:
        """Return the bytes counted by PyTorch's CUDA allocator: the total without framework and NCCL buffers."""
        return self.total - self.framework - self.exchange


@dataclass(frozen=True)
class Fit:
    """The result of `largest`: the phase with the largest fitting micro-batch and an unchanged effective batch."""

    config: PhaseConfig
    memory: Memory
    fits: bool  # False: a single row with recomputation does not fit; `memory` is for that row
    parallel: str = "ddp"  # layout of the model over the GPUs
    gpus: int = 1

    @property
    def accumulation(self) -> int:
        """Return the number of gradient accumulation passes per GPU and step."""
        return -(-self.config.rows // self.gpus // self.config.micro_rows)


def estimate(
    config: PhaseConfig, device: str = "cuda", parts: int = 1, sharers: int = 1, is_held: bool = False
) -> Memory:
    """Return the peak memory per device of a training step of `config`.

    device: `cuda` or `cpu`; dtype `auto` counts as bfloat16. parts: number of FSDP shards of the model. is_held: keep
    the gathered parameters through all passes of a step. sharers: number of processes sharing the optimizer state, each
    with the whole model.
    """
    model, tokens = config.model, config.micro_rows * config.sequence_len * config.views
    width = 4 if config.dtype == "float32" else 2
    d, f = model.hidden_size, model.intermediate_size
    q, kv = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    in_blocks = model.num_matrix_params - model.vocab_size * d
    head = model.vocab_size * d

    # Outputs of matrix products and attention per token: block input and residual after attention (2 d), q and the
    # attention result (2 q), k and v (2 kv), gate and up or up alone (2 f or f).
    products = 2 * d + 2 * q + 2 * kv + (2 if model.has_gate else 1) * f
    # Inputs of matrix products: both norm outputs (2 d); silu(gate) and silu(gate) * up, or relu(up) and relu(up)**2
    # (2 f). The compiler recomputes silu or relu (f remains), and with float8 all of these inputs.
    compiled = device == "cuda" and config.should_compile("cuda")
    inputs = 0 if compiled and config.dtype == "float8" else 2 * d + (1 if compiled else 2) * f
    block = products + inputs + (q + kv if model.qk_norm else 0)
    block += sum(one.saved_values_per_token(model) for one in model.features)
    # Float32 statistics: a number per head (attention log-sum-exp, q and k norms), and a number per token for each
    # block norm.
    small = 4 * (model.num_attention_heads * (3 if model.qk_norm else 1) + 2)
    per_token = width * block + small
    blocks = model.num_hidden_layers
    if config.recompute and config.keep_products:
        kept = blocks * (width * (products + (0 if compiled else 2 * d)) + 4 * model.num_attention_heads)
    else:
        kept = blocks * (d * width if config.recompute else per_token)
    ends = 3 * d * width  # embedding output, final norm output and gradient
    copies = 0 if width == 4 and not model.has_masters else width * in_blocks  # cast copies of the matrices
    if config.recompute:
        copies //= model.num_hidden_layers
    if config.dtype == "float8":  # forward and transposed, for all passes of a step
        copies = 2 * in_blocks

    sliced = min(tokens, SLICE_TOKENS[device])
    slices = sliced * model.vocab_size * (4 + 4 + 2 * (width if width == 2 else 0))
    waiting = 4 * head + (width * head if width == 2 else 0)  # gradient of the head and cast copy of the head
    # Temporary gradients inside an MLP and the float32 tensors of a norm; the slices of logits are freed by then.
    passing = tokens * width * (3 * f + 2 * d) if compiled else tokens * (4 * f * width + 3 * 4 * d)
    if device == "cpu" and config.micro_rows * model.num_attention_heads * config.sequence_len**2 <= SQUARES:
        # Attention in parts holds four tensors of a quarter of the scores, never at the same time as the MLP gradients.
        passing = max(passing, width * config.micro_rows * model.num_attention_heads * config.sequence_len**2)
    if config.recompute:  # recomputed tensors of a block
        passing += tokens * per_token
    activations = tokens * (kept + ends) + max(0, passing - slices)
    if model.tie_word_embeddings:
        waiting += 4 * head  # the embedding part of the shared gradient is dense too

    if parts > 1:  # FSDP gathers a block and prefetches the next; parameters outside the blocks stay gathered
        ends_params, as_sent = model.num_params - in_blocks, 4 if model.has_masters else width
        together = as_sent * (2 * in_blocks // model.num_hidden_layers + ends_params)
        reduced = 4 * (in_blocks // model.num_hidden_layers + ends_params)  # gradients under reduction
        copies = together + reduced
        if is_held:  # all blocks and all block gradients
            copies += (as_sent + 4) * in_blocks

    ends_kept = model.num_params if parts == 1 else model.num_params - in_blocks  # embedding and head stay gathered
    by_muon = in_blocks if config.optimizer.muon_lr else 0
    optimizer = 4 * by_muon + 8 * (model.num_params - by_muon)
    unit = 4 * max(in_blocks // model.num_hidden_layers, model.num_params - in_blocks)  # bytes per communication unit
    owned = 4 * model.num_params // sharers if sharers > 1 else 0  # reduced gradients of the rows owned by this process
    under_way = unit * (1 + 1 / sharers) if sharers > 1 else 0
    update = muon_bytes(config, device, max(parts, sharers)) + 2 * under_way
    free = activations + slices + waiting + copies + (4 * model.num_params - owned if sharers > 1 else 0)
    share = max(parts, sharers)
    return Memory(
        weights=4 * model.num_params // parts + copies,
        gradients=4 * model.num_params // parts + int(under_way),
        optimizer=optimizer // share,
        activations=activations,
        logits=slices + waiting,
        framework=FRAMEWORK_BYTES[device],
        frozen=config.num_frozen * width * (ends_kept + (model.num_params - ends_kept) // parts),
        update=max(0, int(update - free)),
        exchange=TALK_BYTES[device] if share > 1 else 0,
        saving=host_bytes(config, share) if device == "cpu" else 0,
    )


def muon_bytes(config: PhaseConfig, device: str, share: int = 1) -> int:
    """Return the temporary bytes of Muon for the largest group of equal shapes; `share` processes split the work."""
    model, width = config.model, 4 if config.dtype == "float32" else 2
    if not config.optimizer.muon_lr:
        return 0
    d, q = model.hidden_size, model.num_attention_heads * model.head_dim
    kv, f = model.num_key_value_heads * model.head_dim, model.intermediate_size
    shapes = [(q, d), (kv, d), (kv, d), (d, q), *[(f, d)] * (2 if model.has_gate else 1), (d, f)]
    by_shape = [shapes.count(one) * one[0] * one[1] for one in set(shapes)]
    numbers = max(by_shape) * model.num_hidden_layers // share
    at_once = min(numbers, MUON_AT_ONCE) if device == "cuda" else numbers
    # Nesterov momentum in float32, as single tensors and as a stack; then the Newton-Schulz products.
    return max(8 * numbers, (4 + width) * numbers + 5 * width * at_once)


def host_bytes(config: PhaseConfig, share: int = 1) -> int:
    """Return the bytes of host memory holding the checkpoint copy of a process: parameters and optimizer state."""
    by_muon = config.model.num_matrix_params - config.model.vocab_size * config.model.hidden_size
    state = 8 * config.model.num_params - (4 * by_muon if config.optimizer.muon_lr else 0)
    return (4 * config.model.num_params + state) // share


def ways(config: PhaseConfig, per_node: int, nodes: int = 1) -> dict[str, ModelLayout]:
    """Return the layouts of a model over `per_node * nodes` GPUs, fastest first, as arguments of `estimate`."""
    gpus = per_node * nodes
    found: dict[str, ModelLayout] = {"ddp": {"sharers": gpus}}
    if nodes > 1 and per_node > 1:
        found["hybrid"] = {"parts": per_node}
    if gpus > 1:
        found["fsdp"] = {"parts": gpus}
    return found if config.parallel == "auto" else {config.parallel: found.get(config.parallel, {})}


def fastest_layout(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> str:
    """Return the fastest layout fitting into `memory_bytes` per GPU, or the smallest layout when none fits."""
    found = ways(config, per_node, nodes)
    fitting = [way for way, spread in found.items() if estimate(config, **spread).total <= USABLE * memory_bytes]
    return fitting[0] if fitting else list(found)[-1]


def fits(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> bool:
    """Return whether the phase fits unchanged into `memory_bytes` per GPU in any allowed layout."""
    spreads = ways(config, per_node, nodes).values()
    return any(estimate(config, **spread).total <= USABLE * memory_bytes for spread in spreads)


def advice(config: PhaseConfig, memory_bytes: int, way: str, per_node: int = 1, nodes: int = 1) -> str:
    """Return settings, with estimated sizes, that avoid an out-of-memory error on a GPU of `memory_bytes`.

    way: the layout in use, a key of `ways`.
    """
    spread = ways(replace(config, parallel="auto"), per_node, nodes).get(way, {})

    def needs(**change: Any) -> int:
        return estimate(replace(config, **change), **spread).total

    now, phase = needs(), config.phase
    said = f"{phase} needs an estimated {gib(now)} with micro_rows {config.micro_rows}; the GPU has {gib(memory_bytes)}"
    fewer = [rows for rows in range(config.micro_rows - 1, 0, -1) if config.rows % rows == 0]
    fits = [rows for rows in fewer if needs(micro_rows=rows) <= SPARE * memory_bytes]
    least = fits[0] if fits else 1
    ways_out = [f"--set {phase}.micro_rows={least} ({gib(needs(micro_rows=least))})"] if fewer else []
    if not config.recompute:
        rows = config.micro_rows if needs(recompute=True) <= SPARE * memory_bytes else least
        words = f"--set {phase}.recompute=true" + (
            f" --set {phase}.micro_rows={rows}" if rows < config.micro_rows else ""
        )
        ways_out.append(f"{words} ({gib(needs(recompute=True, micro_rows=rows))}, a third slower)")
    if config.rl is not None and config.rl.engine == "embedded":
        rows, each = config.rl.side_by_side, cache_bytes(config)
        ways_out.append(
            f"--set {phase}.rl.side_by_side={max(1, rows // 2)} (fewer answers at a time; caches take "
            f"{gib(max(1, rows // 2) * each)} instead of {gib(rows * each)})"
        )
    larger = next((size for size in SIZES if size > memory_bytes * 1.1 and now <= SPARE * size), 0)
    if larger:
        ways_out.append(f"a GPU with {gib(larger)}")
    if way == "ddp" and per_node * nodes > 1:
        ways_out.append(f"--set {phase}.parallel=fsdp ({gib(estimate(config, parts=per_node * nodes).total)} each)")
    return f"{said}. Use {', or '.join(ways_out) or 'a smaller model'}"


def cache_bytes(config: PhaseConfig) -> int:
    """Return the bytes of the KV cache of a sequence of `sequence_len` tokens."""
    model = config.model
    numbers = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * config.sequence_len
    return numbers * (4 if config.dtype == "float32" else 2)


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def largest(config: PhaseConfig, memory_bytes: int, per_node: int = 1, nodes: int = 1, most: int = 1 << 30) -> Fit:
    """Return the largest micro-batch of `config` fitting into `memory_bytes` per GPU, at most `most` rows.

    Shard the model, and then recompute activations, only when a single row does not fit. Micro-batch sizes are divisors
    of `rows`, so the effective batch stays unchanged.
    """
    gpus = per_node * nodes
    sizes = [number for number in range(config.rows, 0, -1) if config.rows % number == 0]
    sizes = [number for number in sizes if number <= min(most, -(-config.rows // gpus))]
    for recompute in dict.fromkeys((config.recompute, True)):
        for way, spread in ways(config, per_node, nodes).items():
            for micro_rows in sizes:
                tried = replace(config, micro_rows=micro_rows, recompute=recompute)
                memory = estimate(tried, **spread)
                if memory.total <= USABLE * memory_bytes:
                    return Fit(tried, memory, True, way, gpus)
    return Fit(tried, memory, False, way, gpus)
