"""Estimates of the GPU memory that training takes, part by part, and the largest micro-batch that fits. No torch here.

In: a `PhaseConfig`, how much memory there is. Out: `Memory`, in bytes; a `Fit`. Every GPU holds the whole model and a
share of the optimizer's state (`sharers`), or a part of both (`parts`). The sums are of what the decoder keeps for the
backward pass, where it is compiled for a GPU of what the compiler keeps; tests hold them against what a process took.
On a CPU glibc keeps more than is held, in pieces that nothing fits into (trainer.device): up to a quarter of the sum
more.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from trainer.config import PhaseConfig

SLICE_TOKENS = {"cpu": 512, "cuda": 4096}  # whose logits exist at one time: trainer.model.losses
SIZES = tuple(gb << 30 for gb in (16, 24, 32, 40, 48, 80, 96, 141, 180, 192, 288))  # memory of GPUs that can be rented
SPARE = 0.85  # share of a GPU's memory to use after one was full: the estimate was too low then
USABLE = 0.92  # share of a GPU's memory; the rest goes to fragments
SQUARES = 1 << 24  # scores of all heads and rows at most, where a CPU makes them in parts: trainer.model.attention
FRAMEWORK_BYTES = {
    "cpu": 320 << 20,
    "cuda": 1 << 30,
}  # PyTorch itself, its kernels' code and workspaces, what threads keep
TALK_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}  # buffers of several processes for communication, such as NCCL's
MUON_AT_ONCE = 1 << 26  # numbers that a GPU orthogonalises at a time: trainer.optim


class Shares(TypedDict, total=False):
    """The spreading of a model over several GPUs: keyword arguments of `estimate`."""

    parts: int
    sharers: int


@dataclass(frozen=True)
class Memory:
    """Bytes of each part at the peak."""

    weights: int
    """Parameters in float32, and their copies in the dtype of activations that are kept until the backward pass."""
    gradients: int
    optimizer: int
    activations: int
    """Tensors that the blocks keep for the backward pass, and temporary ones of that pass."""
    logits: int
    """One slice of the logits with its gradients, and the accumulated gradient of the head."""
    framework: int
    frozen: int = 0
    """A second model that does not learn, in the dtype of activations."""
    update: int = 0
    """Memory of the update beyond what the passes have freed: Muon's products, parameters being gathered."""
    exchange: int = 0
    """Buffers for communication between processes."""
    saving: int = 0
    """The copy from which checkpoints are written, on a CPU. A GPU's lies in its machine's memory: `host_bytes`."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def in_allocator(self) -> int:
        """Return what of it PyTorch's allocator for GPUs counts: all but the driver's and NCCL's own."""
        return self.total - self.framework - self.exchange


@dataclass(frozen=True)
class Fit:
    """The largest micro-batch that fits, the effective batch unchanged."""

    config: PhaseConfig
    memory: Memory
    fits: bool  # False = not even one row with recomputation, which `memory` is of
    parallel: str = "ddp"  # layout of the model over the GPUs
    gpus: int = 1

    @property
    def accumulation(self) -> int:
        """Return the passes of each GPU in a step."""
        return -(-self.config.rows // self.gpus // self.config.micro_rows)


def estimate(
    config: PhaseConfig, device: str = "cuda", parts: int = 1, sharers: int = 1, is_held: bool = False
) -> Memory:
    """Return the bytes of one step of `config`; device: cuda or cpu; `auto` counts as bfloat16.

    The model is cut into so many parts (is_held: and together for all passes of a step), or each process has it whole
    and so many share the optimizer's state.
    """
    model, tokens = config.model, config.micro_rows * config.sequence_len * config.views
    width = 4 if config.dtype == "float32" else 2
    d, f = model.hidden_size, model.intermediate_size
    q, kv = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    in_blocks = model.num_matrix_params - model.vocab_size * d
    head = model.vocab_size * d

    # What goes into a block, and what attention adds to it; q, k, v and the answer; gate and up, or up alone.
    products = 2 * d + 2 * q + 2 * kv + (2 if model.has_gate else 1) * f
    # Both norms' results; silu(gate) and its product with up, or relu(up) and its square. A compiler makes silu or relu
    # again, and where a product is in 8 bits all of its inputs.
    compiled = device == "cuda" and config.pays_to_compile("cuda")
    inputs = 0 if compiled and config.dtype == "float8" else 2 * d + (1 if compiled else 2) * f
    block = products + inputs + (q + kv if model.qk_norm else 0)
    block += sum(one.kept_numbers(model) for one in model.features)
    # Attention's sums and the norms' are float32, one number per head or token.
    small = 4 * (model.num_attention_heads * (3 if model.qk_norm else 1) + 2)
    per_token = width * block + small
    blocks = model.num_hidden_layers
    if config.recompute and config.keep_products:
        kept = blocks * (width * (products + (0 if compiled else 2 * d)) + 4 * model.num_attention_heads)
    else:
        kept = blocks * (d * width if config.recompute else per_token)
    ends = 3 * d * width  # embedded, normed for the head, and the gradient of that
    copies = 0 if width == 4 and not model.has_masters else width * in_blocks  # each matrix as it was multiplied
    if config.recompute:
        copies //= model.num_hidden_layers
    if config.dtype == "float8":  # both ways, for all passes of a step
        copies = 2 * in_blocks

    sliced = min(tokens, SLICE_TOKENS[device])
    slices = sliced * model.vocab_size * (4 + 4 + 2 * (width if width == 2 else 0))
    waiting = 4 * head + (width * head if width == 2 else 0)  # the head's gradient, its matrix as it was multiplied
    # Gradients inside of an MLP, a norm's float32: after the logits.
    passing = tokens * width * (3 * f + 2 * d) if compiled else tokens * (4 * f * width + 3 * 4 * d)
    if device == "cpu" and config.micro_rows * model.num_attention_heads * config.sequence_len**2 <= SQUARES:
        # four tensors of a quarter of the scores, where attention is in parts: before an MLP's turn, or after it
        passing = max(passing, width * config.micro_rows * model.num_attention_heads * config.sequence_len**2)
    if config.recompute:  # one block's inner tensors, made again then
        passing += tokens * per_token
    activations = tokens * (kept + ends) + max(0, passing - slices)
    if model.tie_word_embeddings:
        waiting += 4 * head  # the embedding's share of the same gradient is dense too

    if parts > 1:  # a block comes together to compute, the next one already behind it; what is outside of them stays
        ends_params, as_sent = model.num_params - in_blocks, 4 if model.has_masters else width
        together = as_sent * (2 * in_blocks // model.num_hidden_layers + ends_params)
        reduced = 4 * (in_blocks // model.num_hidden_layers + ends_params)  # gradients on their way to their owners
        copies = together + reduced
        if is_held:  # all blocks, and their gradients
            copies += (as_sent + 4) * in_blocks

    ends_kept = model.num_params if parts == 1 else model.num_params - in_blocks  # a frozen model's are in one piece
    by_muon = in_blocks if config.optimizer.muon_lr else 0
    optimizer = 4 * by_muon + 8 * (model.num_params - by_muon)
    unit = 4 * max(in_blocks // model.num_hidden_layers, model.num_params - in_blocks)  # bytes that travel together
    owned = 4 * model.num_params // sharers if sharers > 1 else 0  # gradients of the rows that are changed here
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
    """Return the bytes that Muon takes for the shape with the most numbers, its work shared by so many processes."""
    model, width = config.model, 4 if config.dtype == "float32" else 2
    if not config.optimizer.muon_lr:
        return 0
    d, q = model.hidden_size, model.num_attention_heads * model.head_dim
    kv, f = model.num_key_value_heads * model.head_dim, model.intermediate_size
    shapes = [(q, d), (kv, d), (kv, d), (d, q), *[(f, d)] * (2 if model.has_gate else 1), (d, f)]
    by_shape = [shapes.count(one) * one[0] * one[1] for one in set(shapes)]
    numbers = max(by_shape) * model.num_hidden_layers // share
    at_once = min(numbers, MUON_AT_ONCE) if device == "cuda" else numbers
    # the average ahead in float32, once as tensors and once as a stack; the products of Newton and Schulz
    return max(8 * numbers, (4 + width) * numbers + 5 * width * at_once)


def host_bytes(config: PhaseConfig, share: int = 1) -> int:
    """Return the bytes of memory of the machine from which one process writes its checkpoints."""
    by_muon = config.model.num_matrix_params - config.model.vocab_size * config.model.hidden_size
    state = 8 * config.model.num_params - (4 * by_muon if config.optimizer.muon_lr else 0)
    return (4 * config.model.num_params + state) // share


def ways(config: PhaseConfig, per_node: int, nodes: int = 1) -> dict[str, Shares]:
    """Return the possible layouts of a model over so many GPUs, in the order of speed, each as `estimate` takes it."""
    gpus = per_node * nodes
    found: dict[str, Shares] = {"ddp": {"sharers": gpus}}
    if nodes > 1 and per_node > 1:
        found["hybrid"] = {"parts": per_node}
    if gpus > 1:
        found["fsdp"] = {"parts": gpus}
    return found if config.parallel == "auto" else {config.parallel: found.get(config.parallel, {})}


def parallel(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> str:
    """Return the first of them that fits into GPUs of that size; the one that takes least, where none does."""
    found = ways(config, per_node, nodes)
    fitting = [way for way, spread in found.items() if estimate(config, **spread).total <= USABLE * memory_bytes]
    return fitting[0] if fitting else list(found)[-1]


def fits(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> bool:
    """Return whether it fits into GPUs of that size as it is, spread in one of the ways that it allows."""
    spreads = ways(config, per_node, nodes).values()
    return any(estimate(config, **spread).total <= USABLE * memory_bytes for spread in spreads)


def advice(config: PhaseConfig, memory_bytes: int, way: str, per_node: int = 1, nodes: int = 1) -> str:
    """Return advice after a GPU of that size was full, in numbers; way: of `ways`, as the model was spread."""
    spread = ways(replace(config, parallel="auto"), per_node, nodes).get(way, {})

    def needs(**change: Any) -> int:
        return estimate(replace(config, **change), **spread).total

    now, phase = needs(), config.phase
    said = f"{phase} takes {gib(now)} by estimate with micro_rows {config.micro_rows}, and here are {gib(memory_bytes)}"
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
        ways_out.append(f"--set {phase}.rl.side_by_side={max(1, rows // 2)} (answers at one time, whose caches take "
                        f"{gib(max(1, rows // 2) * each)}, not {gib(rows * each)})")  # fmt: skip
    larger = next((size for size in SIZES if size > memory_bytes * 1.1 and now <= SPARE * size), 0)
    if larger:
        ways_out.append(f"a GPU of {gib(larger)} as it is")
    if way == "ddp" and per_node * nodes > 1:
        ways_out.append(f"--set {phase}.parallel=fsdp ({gib(estimate(config, parts=per_node * nodes).total)} each)")
    return f"{said}; take {', or '.join(ways_out) or 'a smaller model'}"


def cache_bytes(config: PhaseConfig) -> int:
    """Return the bytes of keys and values of one answer with its prompt, as long as they may become."""
    model = config.model
    numbers = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * config.sequence_len
    return numbers * (4 if config.dtype == "float32" else 2)


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def largest(config: PhaseConfig, memory_bytes: int, per_node: int = 1, nodes: int = 1, most: int = 1 << 30) -> Fit:
    """Return the largest micro-batch of `config` on such GPUs, of no more than `most` rows.

    Cutting, then recomputing, only where one row does not fit. The effective batch stays: micro-batches are its
    divisors.
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
