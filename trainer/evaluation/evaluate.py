"""Evaluation primitives: bits per byte of held-out text, nats per target, and greedy answers to conversations.

Functions return plain numbers or texts and emit progress events.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.chat import conversations as chat
from data.events import emit, enter_part
from data.tokens.tokenizer import Tokenizer
from trainer.engines.conversation import max_prompt_len
from trainer.model import hooks
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.generate import generate
from trainer.model.losses import capped

ROWS = 64  # prompts per generation batch
SLICE = 1024  # tokens per slice of logits


@torch.inference_mode()
def bits_per_byte(
    model: Decoder, heldout: Iterable[tuple[np.ndarray, np.ndarray, int]], begin: int | None = None
) -> dict[str, float]:
    """Return `bits_per_byte` and `loss` (nats per counted token) over batches of (ids, targets, bytes); {} for no text.

    begin: first id of every document, to restrict attention to documents; None for no restriction.
    """
    nats, tokens, num_bytes = 0.0, 0, 0
    enter_part("evaluation")
    for ids, targets, size in heldout:
        arrays = [ids, targets, *([(ids == begin).cumsum(axis=1)] if begin is not None else [])]
        nats += float(model.loss(*(torch.from_numpy(one).to(model.head.device) for one in arrays)))
        tokens += int((targets != IGNORED).sum())
        num_bytes += size
        emit("progress", done=num_bytes, unit="held-out bytes")
    return {"bits_per_byte": nats / math.log(2) / num_bytes, "loss": nats / tokens} if num_bytes else {}


@torch.inference_mode()
def nats(model: Decoder, ids: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
    """Return the nats of each target, fp32 (B, T), 0 for targets of -1.

    ids, targets, documents: (B, T), as in `Decoder.loss`.
    """
    return nats_and_greedy(model, ids, targets, documents)[0]


@torch.inference_mode()
def nats_and_greedy(
    model: Decoder, ids: Tensor, targets: Tensor, documents: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the nats of each target (see `nats`) and bool (B, T), True where a target is the most likely id.

    The bools are all False when a pack computes the likelihoods of the model.
    """
    for one in hooks.feature_hooks(model.config):
        if (own := one.nats(model, ids, targets)) is not None:
            return own, torch.zeros_like(targets, dtype=torch.bool)
    hidden, wanted = model.hidden(ids, documents=documents).flatten(0, 1), targets.flatten()
    counted = (wanted != IGNORED).nonzero().squeeze(1)
    found, weight = torch.zeros(len(wanted), device=ids.device), model.head.to(model.compute_dtype)
    is_greedy = torch.zeros(len(wanted), dtype=torch.bool, device=ids.device)
    for part in counted.split(SLICE):
        logits = capped(F.linear(hidden[part], weight).float(), model.shape.softcap)
        found[part] = logits.logsumexp(dim=1) - logits.gather(1, wanted[part].unsqueeze(1)).squeeze(1)
        is_greedy[part] = logits.argmax(dim=1) == wanted[part]
    return found.view_as(targets), is_greedy.view_as(targets)


def rows_of_text(
    model: Decoder,
    heldout: Iterable[tuple[np.ndarray, np.ndarray, int]],
    tokenizer: Tokenizer,
    begin: int | None = None,
) -> dict[str, list[float]]:
    """Return lists `nats`, `tokens` and `bytes` with an entry per row of held-out text.

    tokenizer: maps the ids to bytes. begin: first id of every document, to restrict attention to documents.
    """
    found: dict[str, list[float]] = {"nats": [], "tokens": [], "bytes": []}
    for ids, targets, _ in heldout:
        arrays = [ids, targets, *([(ids == begin).cumsum(axis=1)] if begin is not None else [])]
        costs = nats(model, *(torch.from_numpy(one).to(model.head.device) for one in arrays))
        counted = targets != IGNORED
        found["nats"] += [round(one, 4) for one in costs.sum(dim=1, dtype=torch.float64).tolist()]
        found["tokens"] += counted.sum(axis=1).tolist()
        found["bytes"] += np.where(counted, tokenizer.bytes_behind(ids, targets), 0).sum(axis=1).tolist()
        emit("progress", done=int(sum(found["bytes"])), unit="held-out bytes")
    return found


def answers(
    model: Decoder, tokenizer: Tokenizer, conversations: Sequence[Sequence[Mapping[str, Any]]], max_new: int = 96
) -> list[str]:
    """Return the model's greedy answer to each conversation, ignoring a final assistant message.

    Drop the oldest turns of a conversation exceeding the model's context.
    """
    room, align = room_for(model, max_new), hooks.align(model.config)
    prompts = [chat.fit_history(messages, tokenizer, room, align)[1] for messages in conversations]
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))  # minimize padding
    stop = set(tokenizer.stops)
    said = [""] * len(prompts)
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        found = generate(model, [prompts[row] for row in rows], stop, max_new, num_ids=tokenizer.vocab_size)
        for row, ids in zip(rows, found, strict=True):
            said[row] = tokenizer.decode(ids)
        emit("progress", done=start + len(rows), total=len(order), unit="answers")
    return said


def room_for(model: Decoder, max_new: int) -> int:
    """Return the maximum prompt length in ids, leaving room for `max_new` ids; at least half of the positions."""
    return max_prompt_len(model.config.max_position_embeddings, max_new)


def contains_name(name: str, answer: str) -> bool:
    """Return whether an answer contains `name` as a whole word, ignoring case; "maximum" does not contain "Max"."""
    pattern = rf"(?<!\w){re.escape(plain(name))}(?!\w)"
    return re.search(pattern, plain(answer)) is not None


def plain(words: str) -> str:
    return unicodedata.normalize("NFC", words).casefold()


def admits_not_knowing(answer: str) -> bool:
    words = answer.lower().replace("\u2019", "'")
    return any(sign in words for sign in ("not know", "don't know", "no idea", "not sure", "cannot say", "can't say"))


def begins_like(answer: str, expected: str, num_words: int = 4) -> bool:
    """Return whether the answer contains the first `num_words` words of the expected docstring."""
    first = " ".join(expected.lower().split()[:num_words])
    return bool(first) and first in " ".join(answer.lower().split())
