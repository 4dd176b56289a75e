"""Pairs of answers as token ids, and their draws: from the mixture of the phase to the rows of a step.

`Pairs` reads the conversations of each source, and renders both answers of a pair as rows with a mask. A single judged
answer forms a pair with an answer to another question, which the loss kto needs. Rows that cannot be used are counted
with a reason, as for other conversations.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data.chat.conversation_counts import ConversationCounts
from data.chat.conversations import read_rows, rendered, targets
from data.chat.foreign_rows import VARIABLES
from data.chat.trained_rows import RefusedConversation, Row, answer_counts, refusal_reasons
from data.errors import InputError
from data.tokens.chat_template import Dialogue
from data.tokens.tokenizer import Tokenizer

CHUNK_STEPS = 8  # most steps drawn together and sorted by length; together they draw no pair twice
PAD_TO = 16
TRIES = 32  # draws of another answer for a conversation without a rejected answer
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Pair:
    """Two rows of ids with masks, of which only answers count."""

    first: Row
    """The better answer; for kto the judged answer."""
    second: Row
    """The worse answer; for kto an answer to another question."""
    is_wanted: bool = False
    """True if the judged answer of kto is wanted."""

    @property
    def length(self) -> int:
        """Return the number of inputs of both rows."""
        return len(self.first[0]) + len(self.second[0]) - 2


@dataclass(frozen=True)
class Asked:
    """The messages before an answer, and the answers."""

    place: str
    before: Dialogue
    better: Messages
    worse: Messages = ()
    is_wanted: bool | None = None
    """Judgement of a single answer; None = a pair, or a conversation."""


class Pairs:
    """The pairs of a mixture, drawn by weight in a seeded order; a pure function of inputs and step.

    All pairs of a source are drawn once before any repeats. Pairs of a step have a similar length.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        mixture: Mapping[str, float],
        tokenizer: Tokenizer,
        max_len: int,
        seed: int,
        rows: int,
        is_single: bool = False,
    ) -> None:
        """Read and render all pairs. rows: pairs of a step. is_single: read single judged answers, for kto.

        Raises InputError for a source without a usable pair.
        """
        self.pad, self.seed, self.rows = tokenizer.stops[0], seed, rows
        self.kinds = sorted(mixture, key=lambda kind: (mixture[kind], kind))
        self.weights = [mixture[kind] / sum(mixture.values()) for kind in self.kinds]
        asked = {kind: [*_read(kind, files[kind])] for kind in self.kinds}
        others = [one for some in asked.values() for one in some]
        self.pairs: list[Pair] = []
        self.starts = [0]  # index of the first pair of each source in `pairs`
        self.counts = ConversationCounts()
        for kind, some in asked.items():
            chance = np.random.default_rng([seed, len(self.starts)])
            some = [_contrasted(one, others, chance) for one in some]
            some = _singles(some, others) if is_single else some
            made, counts = _rendered(kind, some, tokenizer, max_len + 1, is_single)
            self.pairs += made
            self.counts += counts
            self.starts.append(len(self.pairs))
        self.chunk_steps = max(1, min(CHUNK_STEPS, len(self.pairs) // rows))
        self._chunk = lru_cache(maxsize=2)(self._draw)
        self._epoch = lru_cache(maxsize=4 * len(self.kinds))(self._order)

    def drawn(self, step: int) -> list[int]:
        """Return the indices of the pairs of a step."""
        chunk, place = divmod(step, self.chunk_steps)
        return self._chunk(chunk)[place]

    def drawn_before(self, steps: int) -> list[int]:
        """Return the indices of all pairs of the steps before `steps`, shortest pair first."""
        found = {one for step in range(steps) for one in self.drawn(step)}
        return sorted(found, key=lambda one: (self.pairs[one].length, one))

    def batch(self, drawn: Sequence[int], parts: Sequence[int] = (0, 1)) -> dict[str, np.ndarray]:
        """Return `ids`, `targets` and `documents` of pairs, int64 (pairs, T), with the answers of a pair in a row.

        parts: answers of each pair, 0 for the first. `documents` has the number of the answer, 2 for padding.
        """
        made = [[targets(*row) for row in self._rows(one, parts)] for one in drawn]
        longest = max(sum(len(ids) for ids, _ in some) for some in made)
        shape = (len(made), longest + -longest % PAD_TO)
        found = {"ids": np.full(shape, self.pad, np.int64), "targets": np.full(shape, -1, np.int64)}
        found["documents"] = np.full(shape, 2, np.int64)
        for row, some in enumerate(made):
            start = 0
            for number, (ids, after) in zip(parts, some, strict=True):
                part = slice(start, start + len(ids))
                found["ids"][row, part], found["targets"][row, part] = ids, after
                found["documents"][row, part] = number
                start = part.stop
        return found

    def _rows(self, one: int, parts: Sequence[int]) -> list[Row]:
        both = (self.pairs[one].first, self.pairs[one].second)
        return [both[part] for part in parts]

    def _draw(self, chunk: int) -> list[list[int]]:
        """Return the pairs of each step of a chunk."""
        size = self.chunk_steps * self.rows
        before, after = self._counts_per_kind(chunk * size), self._counts_per_kind((chunk + 1) * size)
        drawn = [self._pick(kind, draw) for kind in range(len(self.kinds)) for draw in range(before[kind], after[kind])]
        drawn.sort(key=lambda one: (self.pairs[one].length, one))
        steps = [drawn[start:end] for start, end in pairwise(range(0, size + 1, self.rows))]
        return [steps[place] for place in np.random.default_rng([self.seed, chunk]).permutation(self.chunk_steps)]

    def _counts_per_kind(self, total: int) -> list[int]:
        """Return the number of pairs per source among the first `total`; the heaviest source takes the rest."""
        counts = [int(total * weight) for weight in self.weights[:-1]]
        return [*counts, total - sum(counts)]

    def _pick(self, kind: int, draw: int) -> int:
        epoch, place = divmod(draw, self.starts[kind + 1] - self.starts[kind])
        return self.starts[kind] + int(self._epoch(kind, epoch)[place])

    def _order(self, kind: int, epoch: int) -> np.ndarray:
        size = self.starts[kind + 1] - self.starts[kind]
        return np.random.default_rng([self.seed, kind, epoch]).permutation(size)


def _read(kind: str, path: Path) -> Iterator[Asked]:
    """Yield the answers of a file: pairs, judged answers, or conversations, whose last message is the better answer."""
    for number, row in enumerate(read_rows(path), 1):
        place = f"{kind}, row {row.get('row', number)}"
        before = Dialogue(row["messages"], row.get("tools"), row.get(VARIABLES) or {})
        if "completion" in row:
            yield Asked(place, before, row["completion"], is_wanted=bool(row["label"]))
        elif "chosen" in row:
            yield Asked(place, before, row["chosen"], row["rejected"])
        else:
            head = Dialogue(before.messages[:-1], before.tools, before.variables)
            yield Asked(place, head, before.messages[-1:])


def _contrasted(one: Asked, others: Sequence[Asked], chance: np.random.Generator) -> Asked:
    """Return a conversation with an answer to another question as the worse answer, if an unequal answer is found."""
    if one.worse or one.is_wanted is not None:
        return one
    for place in chance.integers(0, len(others), TRIES).tolist():
        if others[place].better[-1].get("content") != one.better[-1].get("content"):
            return replace(one, worse=others[place].better)
    return one


def _singles(some: Sequence[Asked], others: Sequence[Asked]) -> list[Asked]:
    """Return judged answers, each with the previous answer to another question as the other answer, if any.

    A pair becomes two judged answers: the better answers of all pairs come first, as in TRL. others: answers of all
    files, for a file with a single question.
    """
    better = [replace(one, worse=(), is_wanted=one.is_wanted is not False) for one in some]
    found = [*better, *(replace(one, better=one.worse, worse=(), is_wanted=False) for one in some if one.worse)]
    singles, begin = list[Asked](), found[0].before if found else None
    last = next((one for one in (*reversed(found), *others) if one.before != begin), None)
    for earlier, one in zip([*found[-1:], *found], found, strict=False):
        last = earlier if earlier.before != one.before else last
        singles.append(replace(one, worse=last.better if last else ()))
    return singles


def _rendered(
    kind: str, some: Sequence[Asked], tokenizer: Tokenizer, limit: int, is_single: bool
) -> tuple[list[Pair], ConversationCounts]:
    """Return the usable pairs, cut to `limit` ids, and the counts. Raises InputError without a usable pair."""
    found, refused, counts = list[Pair](), list[RefusedConversation](), Counter[str]()
    for one in some:
        counts["conversations"] += 1
        try:
            if not is_single and one.is_wanted is not None:
                raise InputError("it has a single answer with a label, which only the loss kto reads")
            if not one.worse:
                if is_single:
                    raise InputError("no other row has another question, which the loss kto needs")
                raise InputError("no answer differs from the answer of this conversation")
            rows = [_row(one.before, answer, tokenizer) for answer in (one.better, one.worse)]
        except InputError as error:
            refused.append(RefusedConversation(one.place, str(error)))
            continue
        for ids, mask in rows[: 1 if is_single else 2]:
            counts.update(answer_counts(ids, mask, tokenizer.stops, limit))
        cut = [(ids[:limit], mask[:limit]) for ids, mask in rows]
        if all(mask[1:].any() for _, mask in cut):
            found.append(Pair(cut[0], cut[1], bool(one.is_wanted)))
        else:
            counts["without_targets"] += 1
    told = ConversationCounts(refused=len(refused), reasons=tuple(refusal_reasons(refused)), **counts)
    if not found:
        raise InputError(f"no pair can be trained in the {len(some):,} rows of {kind!r}: {told.words()}")
    return found, told


def _row(before: Dialogue, answer: Messages, tokenizer: Tokenizer) -> Row:
    """Return ids and mask of a conversation in which only the messages of the answer are trained. Raises InputError."""
    head = [{**one, "weight": 0} if one["role"] == "assistant" else one for one in before.messages]
    whole = Dialogue([*head, *answer], before.tools, before.variables)
    learning = [(ids, mask) for ids, mask in rendered(whole, tokenizer) if any(mask)]
    if len(learning) != 1:
        raise InputError("the model's chat template renders the answers of this conversation in several rows")
    return np.array(learning[0][0], np.int64), np.array(learning[0][1], np.int64)
