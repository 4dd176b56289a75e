"""Prefix sharing for answers: rows of tokens in which a common prefix of several answers is stored and computed once.

`pack_answers` converts prompts and answers to batch arrays and the target positions of each answer. A row is a prefix
tree in depth-first order. `ends` holds the end of the subtree of each token: token i attends to an earlier token j
exactly if i < ends[j].
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from trainer.model.decoder import IGNORED, Decoder

Spots = list[np.ndarray]
"""Per answer, the indices of the answer's ids as targets in the flattened rows: int64, (length of the answer,)."""


class _Row:
    """A row under construction. A token is repeated for each different next id: a position has one target."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.targets: list[int] = []
        self.ends: list[int] = []
        self.places: list[int] = []
        self.parts: list[int] = []
        self.prompt: Sequence[int] | None = None
        self.begin = 0  # start of the prompt
        self.last: Sequence[int] = ()  # last answer
        self.path: list[int] = []  # positions of the last answer
        self.count = 0  # number of answers

    def common_prefix_len(self, prompt: Sequence[int], answer: Sequence[int], merged: bool) -> int:
        """Return the length of the common prefix with the previous answer, or -1 for a different prompt."""
        if self.prompt != prompt:
            return -1
        pairs = zip(self.last, answer, strict=False) if merged else ()
        return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(self.last), len(answer)) * merged)

    def add(self, prompt: Sequence[int], answer: Sequence[int], shared: int) -> list[int]:
        """Append the answer without the `shared` prefix (-1: append the prompt too); return the target positions."""
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


def pack_answers(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    pad: int,
    multiple: int = 16,
    room: int = 0,
    merged: bool = True,
) -> tuple[dict[str, np.ndarray], Spots]:
    """Return (batch, spots): prompts with answers as arrays `ids` and `targets`, int64 (rows, T), and target positions.

    Only answer ids are targets. Consecutive answers to the same prompt share their common prefix. A row has at most
    `room` tokens, more only for a single answer; with room 0 only identical answers share a row. Rows with branches
    also have `ends` and `places`, the position of each token within prompt and answer. The last id of a prompt is
    stored with the answer, as input of the first target.

    pad: id of padding. multiple: T is a multiple of this. merged: share prefixes of answers beyond the prompt;
    otherwise share only prompts and return `parts`, the number of the answer within the row.
    """
    rows: list[_Row] = []
    at: list[tuple[int, list[int]]] = [(0, [])] * len(answers)  # row and positions of each answer
    for prompt, numbers in groupby(range(len(answers)), lambda number: prompts[number]):
        for number in sorted(numbers, key=lambda number: tuple(answers[number])) if merged else numbers:
            answer = answers[number]
            shared = rows[-1].common_prefix_len(prompt, answer, merged) if rows else -1
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
    """Return hidden states (rows, T, d) of a batch from `pack_answers`; tokens attend within prompt and own answer."""
    if "ends" not in batch:
        return model.hidden(batch["ids"])
    index = torch.arange(batch["ids"].shape[1], device=batch["ids"].device)
    sees = index[:, None] < batch["ends"][:, None, :]  # (rows, T, T)
    sees |= index[:, None] == index  # padding attends to itself, else softmax has no entry
    return model.hidden(batch["ids"], at=model.positions(batch["places"], sees.tril()[:, None], is_causal=True))


def scatter_to_targets(targets: np.ndarray, spots: Spots, values: Sequence[Sequence[float]]) -> np.ndarray:
    """Scatter per-token values of the answers to the target positions; return fp32 (rows, T), 0 elsewhere.

    At a shared position, the last answer's value wins.
    """
    found = np.zeros(targets.shape, np.float32)
    for here, some in zip(spots, values, strict=True):
        found.reshape(-1)[here] = some
    return found


def added_up(targets: np.ndarray, spots: Spots, values: Sequence[float]) -> np.ndarray:
    """Add one value per answer to all target positions of the answer; return the sums, fp32 (rows, T)."""
    found = np.zeros(targets.size, np.float64)
    for here, value in zip(spots, values, strict=True):
        found[here] += value
    return found.reshape(targets.shape).astype(np.float32)
