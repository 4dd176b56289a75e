"""How good a model is: bits per byte of held-out text, and what it answers.

In: a model, held-out text or conversations. Out: plain numbers, and progress records on the way.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from data import chat
from data.report import emit
from data.tokenizer import BOS, END, Tokenizer
from trainer.generate import generate
from trainer.model import IGNORED, Decoder

ROWS = 64  # prompts answered side by side


@torch.inference_mode()
def bits_per_byte(
    model: Decoder, heldout: Iterable[tuple[np.ndarray, np.ndarray, int]], begin: int | None = None
) -> dict[str, float]:
    """`bits_per_byte` and `loss` (nats per counted token) over batches of (ids, targets, bytes); {} for no text.

    begin: the id with which documents begin, where each is to be seen alone.
    """
    nats, tokens, num_bytes = 0.0, 0, 0
    for ids, targets, size in heldout:
        arrays = [ids, targets, *([(ids == begin).cumsum(axis=1)] if begin is not None else [])]
        nats += float(model.loss(*(torch.from_numpy(one).to(model.head.device) for one in arrays)))
        tokens += int((targets != IGNORED).sum())
        num_bytes += size
        emit("progress", done=num_bytes, unit="held-out bytes")
    return {"bits_per_byte": nats / math.log(2) / num_bytes, "loss": nats / tokens} if num_bytes else {}


def answers(
    model: Decoder, tokenizer: Tokenizer, conversations: Sequence[Sequence[Mapping[str, Any]]], max_new: int = 96
) -> list[str]:
    """What the model says, greedily, where the last answer of each conversation stands."""
    prompts = [chat.prompt(messages, tokenizer) for messages in conversations]
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))  # little padding
    stop = {tokenizer.special(END), tokenizer.special(BOS)}
    said = [""] * len(prompts)
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        for row, ids in zip(rows, generate(model, [prompts[row] for row in rows], stop, max_new), strict=True):
            said[row] = tokenizer.decode(ids)
        emit("progress", done=start + len(rows), total=len(order), unit="answers")
    return said


def admits_not_knowing(answer: str) -> bool:
    words = answer.lower().replace("\u2019", "'")
    return any(sign in words for sign in ("not know", "don't know", "no idea", "not sure", "cannot say", "can't say"))


def begins_like(answer: str, expected: str, num_words: int = 4) -> bool:
    """Whether the first words of the right docstring are in the answer."""
    first = " ".join(expected.lower().split()[:num_words])
    return bool(first) and first in " ".join(answer.lower().split())
