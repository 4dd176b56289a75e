"""What training takes of a GPU's memory, part by part, and the largest micro-batch that fits. No torch here.

In: a `PhaseConfig`, how much memory there is. Out: `Memory`, in bytes; a `Fit`. Called by `inv fit`, and by plans to
leave out GPUs that are too small. Every GPU holds the whole model (data parallel). The sums are of what the decoder
keeps for the way back without a compiler, which keeps less; tests hold them against what a process took.
"""

from dataclasses import asdict, dataclass, replace

from trainer.config import PhaseConfig

SLICE_TOKENS = {"cpu": 1024, "cuda": 4096}  # whose logits exist at one time: trainer.losses
USABLE = 0.92  # of a GPU's memory; the rest goes to fragments
FRAMEWORK_BYTES = {"cpu": 270 << 20, "cuda": 1 << 30}  # PyTorch itself, its kernels' code and workspaces


@dataclass(frozen=True)
class Memory:
    """Bytes of each part at the moment when most is taken."""

    weights: int
    """float32, and what of them is kept in the dtype of activations until the way back."""
    gradients: int
    optimizer: int
    activations: int
    """What the blocks keep for the way back, and what comes and goes on it."""
    logits: int
    """One slice of them with its gradients, and what the head's gradient waits in."""
    framework: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Fit:
    """The largest micro-batch that fits, the effective batch unchanged."""

    config: PhaseConfig
    memory: Memory
    fits: bool  # False = not even one row with recomputation, which `memory` is of

    @property
    def accumulation(self) -> int:
        return self.config.rows // self.config.micro_rows


def estimate(config: PhaseConfig, device: str = "cuda") -> Memory:
    """Of one step of `config`; device: cuda or cpu. `auto` counts as bfloat16."""
    model, tokens = config.model, config.micro_rows * config.sequence_len
    width = 4 if config.dtype == "float32" else 2
    d, f = model.hidden_size, model.intermediate_size
    q, kv = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    in_blocks = model.num_matrix_params - model.vocab_size * d
    head = model.vocab_size * d

    # Two norms with what goes in and comes out; q, k, v and the answer; gate, up, silu(gate) and their product.
    block = 4 * d + (q + kv if model.qk_norm else 0) + 2 * q + 2 * kv + 4 * f
    # Attention's sums and the norms' are float32, one number per head or token.
    small = 4 * (model.num_attention_heads * (3 if model.qk_norm else 1) + 2)
    per_token = width * block + small
    blocks = model.num_hidden_layers
    kept = blocks * d * width + per_token if config.recompute else blocks * per_token
    ends = 3 * d * width  # embedded, normed for the head, and the gradient of that
    copies = 0 if width == 4 else width * in_blocks  # each matrix as it was multiplied
    if config.recompute:
        copies //= model.num_hidden_layers

    sliced = min(tokens, SLICE_TOKENS[device])
    slices = sliced * model.vocab_size * (4 + 4 + 2 * (width if width == 2 else 0))
    waiting = 4 * head + (width * head if width == 2 else 0)  # the head's gradient, its matrix as it was multiplied
    passing = tokens * (4 * f * width + 3 * 4 * d)  # gradients inside of an MLP, a norm's float32: after the logits
    activations = tokens * (kept + ends) + max(0, passing - slices)
    if model.tie_word_embeddings:
        waiting += 4 * head  # the embedding's share of the same gradient is dense too

    by_muon = in_blocks if config.optimizer.muon_lr else 0
    optimizer = 4 * by_muon + 8 * (model.num_params - by_muon)
    return Memory(
        weights=4 * model.num_params + copies,
        gradients=4 * model.num_params,
        optimizer=optimizer,
        activations=activations,
        logits=slices + waiting,
        framework=FRAMEWORK_BYTES[device],
    )


def largest(config: PhaseConfig, memory_bytes: int) -> Fit:
    """The largest micro-batch of `config` on such a GPU; recomputing only where one row does not fit without.

    The effective batch stays: micro-batches are its divisors.
    """
    divisors = [number for number in range(config.rows, 0, -1) if config.rows % number == 0]
    for recompute in dict.fromkeys((config.recompute, True)):
        for micro_rows in divisors:
            tried = replace(config, micro_rows=micro_rows, recompute=recompute)
            memory = estimate(tried)
            if memory.total <= USABLE * memory_bytes:
                return Fit(tried, memory, True)
    return Fit(tried, memory, False)
