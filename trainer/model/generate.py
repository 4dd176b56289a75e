"""Tokens out of a model: batched, with a KV cache, greedy or sampled.

In: prompts as ids. Out: ids, step by step. Padding is on the left, and attention never sees it, so a row of a batch
says what it would say alone.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from trainer.model import block_decoding
from trainer.model.choice import choose
from trainer.model.decoder import Cache, Decoder


@torch.inference_mode()
def steps(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    temperature: float = 0.0,
    top_k: int = 0,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Yield the next id of every row (B,), again and again, at most `max_new` times or until the positions end."""
    longest, device = max(map(len, prompts)), model.head.device
    starts = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)  # (B, T)
    capacity = min(longest + max_new, model.config.max_position_embeddings)
    cache = Cache.empty(model.config, starts, capacity, model.compute_dtype)
    for _ in range(capacity - longest):
        chosen = choose(model(ids, cache, last_only=True)[:, 0], temperature, top_k, generator)
        yield chosen
        ids = chosen[:, None]


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    stop: Collection[int],
    max_new: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
) -> list[list[int]]:
    """Return the continuation of each prompt, up to the first id of `stop`, which is left out."""
    if model.config.blocks is not None:
        return block_decoding.generate(model, prompts, stop, max_new, temperature, top_k, seed)
    generator = torch.Generator(model.head.device).manual_seed(seed)
    answers: list[list[int]] = [[] for _ in prompts]
    going = set(range(len(prompts)))
    for chosen in steps(model, prompts, max_new, temperature, top_k, generator):
        for row, token in enumerate(chosen.tolist()):
            if row in going and token in stop:
                going.remove(row)
            elif row in going:
                answers[row].append(token)
        if not going:
            break
    return answers


def stream(
    model: Decoder, prompt: Sequence[int], stop: Collection[int], max_new: int, temperature: float = 0.0,
    top_k: int = 0, generator: torch.Generator | None = None,
) -> Iterator[int]:  # fmt: skip
    """Yield the continuation of a prompt, id by id, up to the first of `stop`, which is left out."""
    if model.config.blocks is not None:
        decoding = block_decoding.Decoding(model, [prompt], stop, max_new, temperature, top_k, generator)
        found = (token for new in decoding for token in new[0])
    else:
        found = (int(one) for one in steps(model, [prompt], max_new, temperature, top_k, generator))
    for token in found:
        if token in stop:
            return
        yield token
