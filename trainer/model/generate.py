"""Batched token generation with a KV cache, greedy or sampled.

Prompts are padded on the left and attention masks the padding, so a row of a batch generates the same tokens as alone.
A model may have more rows than its tokenizer has ids: `num_ids` leaves the further rows out, 0 = no such rows.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from trainer.model import hooks
from trainer.model.decoder import Cache, Decoder
from trainer.model.token_sampling import sample_token


@torch.inference_mode()
def steps(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new: int,
    temperature: float = 0.0,
    top_k: int = 0,
    generator: torch.Generator | None = None,
    num_ids: int = 0,
) -> Iterator[Tensor]:
    """Yield the next token id of every row (B,), at most `max_new` times or up to `max_position_embeddings`."""
    longest, device = max(map(len, prompts)), model.head.device
    starts = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)  # (B, T)
    capacity = min(longest + max_new, model.config.max_position_embeddings)
    cache = Cache.empty(model.config, starts, capacity, model.compute_dtype)
    for _ in range(capacity - longest):
        logits = model(ids, cache, last_only=True)[:, 0]
        if num_ids:
            logits[:, num_ids:] = float("-inf")
        chosen = sample_token(logits, temperature, top_k, generator)
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
    num_ids: int = 0,
) -> list[list[int]]:
    """Return the continuation of each prompt, up to and excluding the first id in `stop`."""
    generator = torch.Generator(model.head.device).manual_seed(seed)
    answers: list[list[int]] = [[] for _ in prompts]
    own = decoding(model, prompts, stop, max_new, temperature, top_k, generator)
    if own is not None:
        for found in own:
            for answer, new in zip(answers, found, strict=True):
                answer.extend(token for token in new if token not in stop)
        return answers
    going = set(range(len(prompts)))
    for chosen in steps(model, prompts, max_new, temperature, top_k, generator, num_ids):
        for row, token in enumerate(chosen.tolist()):
            if row in going and token in stop:
                going.remove(row)
            elif row in going:
                answers[row].append(token)
        if not going:
            break
    return answers


def decoding(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    stop: Collection[int],
    max_new: int,
    temperature: float,
    top_k: int,
    generator: torch.Generator | None,
) -> Iterator[list[list[int]]] | None:
    """Return an iterator over new final ids per prompt and pass from a pack's decoding, or None for a plain decoder."""
    how = (prompts, stop, max_new, temperature, top_k, generator)
    found = (one.decode(model, *how) for one in hooks.feature_hooks(model.config))
    return next((one for one in found if one is not None), None)


def stream(
    model: Decoder,
    prompt: Sequence[int],
    stop: Collection[int],
    max_new: int,
    temperature: float = 0.0,
    top_k: int = 0,
    generator: torch.Generator | None = None,
    num_ids: int = 0,
) -> Iterator[int]:
    """Yield the continuation of a prompt id by id, up to and excluding the first id in `stop`."""
    own = decoding(model, [prompt], stop, max_new, temperature, top_k, generator)
    if own is not None:
        found = (token for new in own for token in new[0])
    else:
        found = (int(one) for one in steps(model, [prompt], max_new, temperature, top_k, generator, num_ids))
    for token in found:
        if token in stop:
            return
        yield token
