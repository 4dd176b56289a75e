"""Estimates of training memory by component. No torch import.

`PhaseConfig` -> `estimate` -> `Memory` in bytes -> `trainer.parallel.fitting`. Every GPU holds the whole model and a
shard of the optimizer state (`sharers`), or a shard of both (`parts`). The activation terms count the tensors saved for
the backward pass, by the decoder or, on a GPU, by the compiler; tests compare the sums with measured peaks. On a CPU,
fragmentation in glibc's malloc (`trainer.device`) adds up to a quarter of the sum.
"""

from dataclasses import asdict, dataclass
from typing import TypedDict

from trainer.config import PhaseConfig

SLICE_TOKENS = {"cpu": 512, "cuda": 4096}  # tokens per slice of logits: trainer.model.losses
USABLE = 0.92  # usable share of a GPU's memory; fragmentation takes the rest
SQUARES = 1 << 24  # maximum number of attention scores for `PartwiseAttention` on a CPU: trainer.model.attention
# PyTorch, kernel code, workspaces and per-thread caches.
FRAMEWORK_BYTES = {"cpu": 320 << 20, "cuda": 1 << 30}
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
    found = Memory(
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
    return config.adapt_memory(found, device, parts, sharers)


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
    state = 8 * config.num_learning - (4 * by_muon if config.optimizer.muon_lr else 0)
    return (4 * config.num_learning + state) // share


def ways(config: PhaseConfig, per_node: int, nodes: int = 1) -> dict[str, ModelLayout]:
    """Return the layouts of a model over `per_node * nodes` GPUs, fastest first, as arguments of `estimate`."""
    gpus = per_node * nodes
    found: dict[str, ModelLayout] = {"ddp": {"sharers": gpus}}
    if nodes > 1 and per_node > 1:
        found["hybrid"] = {"parts": per_node}
    if gpus > 1:
        found["fsdp"] = {"parts": gpus}
    if config.parallel != "auto":
        return {config.parallel: found.get(config.parallel, {})}
    return {way: spread for way, spread in found.items() if way in config.layouts}


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
