"""Answers as rows of tokens, in which what several of them begin with stands once and is computed once.

In: prompts and answers as ids. Out: arrays for a batch, and where each id of each answer is a target in them. A row is
a tree, written down branch after branch: `ends` says where the branches that go on from a token end, so that a token
sees another one exactly if it stands before that one's end.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from trainer.model.decoder import IGNORED, Decoder

Spots = list[np.ndarray]
"""The places of each answer's ids as targets in the flattened rows: int64, (its length,)."""


class _Row:
    """A row in the making. A token of an answer is read once for each id that is found to follow it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.targets: list[int] = []
        self.ends: list[int] = []
        self.places: list[int] = []
        self.parts: list[int] = []
        self.prompt: Sequence[int] | None = None
        self.begin = 0  # start of the prompt
        self.last: Sequence[int] = ()  # answer, and ...
        self.path: list[int] = []  # ... where it stands
        self.count = 0  # number of answers

    def shared(self, prompt: Sequence[int], answer: Sequence[int], merged: bool) -> int:
        """Return the number of ids that the answer shares with the one before it; -1 if it has another prompt."""
        if self.prompt != prompt:
            return -1
        pairs = zip(self.last, answer, strict=False) if merged else ()
        return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(self.last), len(answer)) * merged)

    def add(self, prompt: Sequence[int], answer: Sequence[int], shared: int) -> list[int]:
        """Write down what of an answer is not there yet; where its ids are targets."""
        if shared < 0:
            self.begin, self.prompt, self.path, shared = len(self.ids), prompt, [], 0
            self._put(prompt[:-1], [IGNORED] * (len(prompt) - 1), 0)
        self.count += 1
        before = len(prompt) - 1 + shared
        new = len(self.ids)
        self._put([prompt[-1], *answer[:-1]][shared:], answer[shared:], before)
        self.path = [*self.path[:shared], *range(new, len(self.ids))]
        for place in (*range(self.begin, self.begin + len(prompt) - 1), *self.path):
            self.ends[place] = len(self.ids)
        self.last = answer
        return self.path

    def _put(self, ids: Sequence[int], targets: Sequence[int], place: int) -> None:
        self.ids += ids
        self.targets += targets
        self.ends += [0] * len(ids)
        self.places += range(place, place + len(ids))
        self.parts += [self.count] * len(ids)


def as_rows(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], pad: int, multiple: int = 16, room: int = 0,
    merged: bool = True,
) -> tuple[dict[str, np.ndarray], Spots]:  # fmt: skip
    """Return `ids` and `targets`, int64 (rows, T), prompts with their answers, whose ids alone are targets; and spots.

    Answers to the same prompt, which follow one another, share what they begin with; rows have up to `room` tokens,
    more only for one answer alone. With a room of 0 those share a row that are the same, and no others. Where a row is
    no plain sequence there are `ends`, and `places`: where each token stands in its own prompt and answer. A prompt's
    last id is read where its first target follows.

    merged: whether answers share more than their prompt; else `parts` counts the answers of each row.
    """
    rows: list[_Row] = []
    at: list[tuple[int, list[int]]] = [(0, [])] * len(answers)  # row of each answer, and its places there
    for prompt, numbers in groupby(range(len(answers)), lambda number: prompts[number]):
        for number in sorted(numbers, key=lambda number: tuple(answers[number])) if merged else numbers:
            answer = answers[number]
            shared = rows[-1].shared(prompt, answer, merged) if rows else -1
            more = len(answer) - shared if shared >= 0 else len(prompt) - 1 + len(answer)
            if not rows or more and len(rows[-1].ids) + more > room:
                rows.append(_Row())
                shared = -1
            at[number] = len(rows) - 1, rows[-1].add(prompt, answer, shared)
    longest = max(len(row.ids) for row in rows)
    width = longest + -longest % multiple
    batch = {"ids": np.full((len(rows), width), pad, np.int64), "targets": np.full((len(rows), width), IGNORED)}
    batch |= {name: np.zeros((len(rows), width), np.int64) for name in ("ends", "places", "parts")}
    for number, row in enumerate(rows):
        for name, found in batch.items():
            found[number, : len(row.ids)] = getattr(row, name)
    plain = all(row.places == [*range(len(row.ids))] for row in rows)
    for name in (("ends", "places") if plain else ()) + (("parts",) if merged else ()):
        del batch[name]
    return batch, [row * width + np.array(places, np.int64) for row, places in at]


def hidden_of(model: Decoder, batch: Mapping[str, Tensor]) -> Tensor:
    """Return hidden states (rows, T, d) of what `as_rows` gave: each token sees its prompt and its own answer."""
    if "ends" not in batch:
        return model.hidden(batch["ids"])
    index = torch.arange(batch["ids"].shape[1], device=batch["ids"].device)
    sees = index[:, None] < batch["ends"][:, None, :]  # (rows, T, T)
    sees |= index[:, None] == index  # padding sees itself, else its softmax is empty
    return model.hidden(batch["ids"], at=model.positions(batch["places"], sees.tril()[:, None], is_causal=True))


def at_targets(targets: np.ndarray, spots: Spots, values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the values of each answer's ids where these are targets, fp32 (rows, T), 0 elsewhere.

    Of ids that answers share the value of one of them counts.
    """
    found = np.zeros(targets.shape, np.float32)
    for here, some in zip(spots, values, strict=True):
        found.reshape(-1)[here] = some
    return found


def added_up(targets: np.ndarray, spots: Spots, values: Sequence[float]) -> np.ndarray:
    """Return, fp32 (rows, T), the sum of the values of all answers that a target belongs to, one value for each."""
    found = np.zeros(targets.size, np.float64)
    for here, value in zip(spots, values, strict=True):
        found[here] += value
    return found.reshape(targets.shape).astype(np.float32)
