"""Conversations as ids: how they are rendered, which ids are learnt, and batches of them.

Source: nanochat's conversation format and mask.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data.chat.foreign_rows import AFTER, talk_in
from data.chat.learnt_rows import RefusedConversation, Rendered, Row, fitted
from data.chat.talk_counts import TalkCounts
from data.errors import InputError
from data.tokens.chat_template import REASONING, Dialogue, is_learnt
from data.tokens.tokenizer import BOS, END, Tokenizer
from store import outside

Message = Mapping[str, Any]
Drawn = tuple[int, int]  # a kind, and the number of a conversation of that kind
WITHOUT = "this model's own chat format has no words for that: fine-tune a model whose chat template has (--init)"
PAD_TO = 16
CHUNK_STEPS = 8  # steps that are drawn together and sorted by length


def read_conversations(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the conversations of a .jsonl file: `{"messages": [...]}` or a bare list on each line.

    Raises InputError.
    """
    return (row["messages"] for row in read_rows(path))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl file, with what else stands beside `messages`. Raises InputError."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = outside.row(line)
            except outside.Unreadable as error:
                raise InputError(f"{path}:{number}: not JSON: {error}") from None
            row = row if isinstance(row, dict) else {"messages": row}
            messages = row.get("messages")
            if not isinstance(messages, list) or not all(
                isinstance(one, dict) and "role" in one and ("content" in one or "tool_calls" in one)
                for one in messages
            ):
                raise InputError(f"{path}:{number}: expected a JSON list of messages with role and content")
            yield row


def render(
    messages: Sequence[Message], tokenizer: Tokenizer, max_len: int | None = None, align: int = 1
) -> tuple[list[int], list[int]]:
    """Return (ids, mask) of a conversation as one row, cut to `max_len`; see `rendered`. Raises InputError."""
    ids, mask = rendered(Dialogue(messages), tokenizer, align)[-1]
    return ids[:max_len], mask[:max_len]


def rendered(talk: Dialogue, tokenizer: Tokenizer, align: int = 1) -> list[tuple[list[int], list[int]]]:
    """Return (ids, mask) of each row of a conversation; mask is 1 where the assistant's own words stand.

    A leading system message goes in front of the first user message. An assistant's content may be a list of parts of
    type text, python (learnt) or python_output (not learnt). Each question but the first begins at a multiple of
    `align` ids: what is missing is filled up with <|assistant_end|>, which is learnt. A model with a chat template of
    its own writes all of that in its own way, in several rows where it writes earlier answers otherwise. Raises
    InputError unless user and assistant alternate, and for what a chat format has no words for.
    """
    if tokenizer.chat is not None:
        _check_turns(talk.messages)
        return tokenizer.chat.rows(talk, align)
    _refuse_tools(talk)
    return [_in_our_format(talk.messages, tokenizer, align)]


def _refuse_tools(talk: Dialogue) -> None:
    """Raise InputError for what our own chat format has no words for."""
    for number, one in enumerate(talk.messages, 1):
        if odd := next((name for name in ("tool_calls", *REASONING) if one.get(name)), ""):
            raise InputError(f"message {number} has {odd}; {WITHOUT}")
    if talk.tools:
        raise InputError(f"it has tools; {WITHOUT}")


def _in_our_format(messages: Sequence[Message], tokenizer: Tokenizer, align: int) -> tuple[list[int], list[int]]:
    special = tokenizer.special
    ids, mask = [special(BOS)], [0]

    def add(new: Sequence[int], learnt: int) -> None:
        ids.extend(new)
        mask.extend([learnt] * len(new))

    merged = _merged(messages)
    _check_turns(merged)
    is_right = 1
    for turn, message in enumerate(merged):
        content = message["content"]
        if message["role"] == "tool":
            raise InputError(f"message {turn} is a tool's; {WITHOUT}")
        if turn % 2 == 0:
            if turn:
                add([special(END)] * (-len(ids) % align), is_right)
            add([special("<|user_start|>"), *tokenizer.encode(_text(content)), special("<|user_end|>")], 0)
            continue
        is_right = int(is_learnt(message))
        add([special("<|assistant_start|>")], 0)
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            words = tokenizer.encode(part["text"])
            if part["type"] == "text":
                add(words, is_right)
            elif part["type"] == "python":
                add([special("<|python_start|>"), *words, special("<|python_end|>")], is_right)
            elif part["type"] == "python_output":
                add([special("<|output_start|>"), *words, special("<|output_end|>")], 0)
            else:
                raise InputError(f"message {turn} has a part of type {part['type']!r}")
        add([special(END)], is_right)
    return ids, mask


def prompt(messages: Sequence[Message], tokenizer: Tokenizer, align: int = 1) -> list[int]:
    """Return the ids that ask for the next answer; an assistant's answer at the end is left out.

    `align` is as in `render`.
    """
    if messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    if tokenizer.chat is not None:
        _check_turns(messages)
        return tokenizer.chat.prompt(Dialogue(messages), align)
    return [*render(messages, tokenizer, align=align)[0], tokenizer.special("<|assistant_start|>")]


def recent(
    messages: Sequence[Message], tokenizer: Tokenizer, room: int, align: int = 1
) -> tuple[list[Message], list[int]]:
    """Return the end of a conversation whose prompt has at most `room` ids, and that prompt.

    The oldest turns are dropped, question and answer together; a system message stays, and so does the last question,
    whatever its length.
    """
    head = [one for one in messages[:1] if one.get("role") == "system"]
    turns = list(messages[len(head) :])
    while len(ids := prompt([*head, *turns], tokenizer, align)) > room and len(turns) > 2:
        del turns[:2]
    return [*head, *turns], ids


def targets(ids: Sequence[int] | np.ndarray, mask: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (inputs, targets), both int64 (len(ids) - 1,): the next id, or -1 where it is not learnt."""
    after = np.array(ids[1:], np.int64)
    return np.array(ids[:-1], np.int64), np.where(np.array(mask[1:], bool), after, -1)


def _check_turns(messages: Sequence[Message]) -> None:
    """Raise InputError unless user and assistant take turns, behind a system message perhaps; tools answer calls."""
    talk = messages[1:] if messages and messages[0].get("role") == "system" else messages
    before = "assistant"
    for turn, message in enumerate(talk):
        role = message.get("role")
        if role not in AFTER[before] or not turn and role != "user":
            raise InputError(f"message {turn} is by {role!r} where {AFTER[before][0]!r} must speak")
        before = str(role)


def _merged(messages: Sequence[Message]) -> list[Message]:
    if not messages or messages[0].get("role") != "system":
        return list(messages)
    if len(messages) < 2 or messages[1].get("role") != "user":
        raise InputError("a system message must be followed by a user's")
    first = {**messages[1], "content": "\n\n".join(_text(one["content"]) for one in messages[:2])}
    return [first, *messages[2:]]


def _text(content: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a message; engines hand over parts where the template can take them, also of one string."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _each(path: Path, tokenizer: Tokenizer, align: int) -> Iterator[Rendered | RefusedConversation]:
    """Yield the rows of each conversation of a file, or why it has none."""
    for number, row in enumerate(read_rows(path), 1):
        try:
            yield rendered(talk_in(row), tokenizer, align)
        except InputError as error:
            yield RefusedConversation(f"row {row.get('row', number)}", str(error))


class Conversations:
    """Batches of several kinds of conversation, drawn by weight; a pure function of the inputs and the step.

    Each kind is gone through once, in a seeded order, before any of it comes again. Those of the kinds in `together`
    share rows: up to `turns` of them follow one another, whatever their kind, as far as they fit whole. So a model
    learns to answer the last question, whatever was asked before.
    """

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        mixture: Mapping[str, float],
        tokenizer: Tokenizer,
        max_len: int,
        seed: int,
        turns: int = 1,
        together: Collection[str] = (),
        align: int = 1,
    ):
        """Read and render all conversations.

        With `align` above 1, conversations of a row and their turns begin at multiples of it, and rows are as long as
        their ids. Conversations without a target within a row are left out and counted. Raises InputError for a kind
        without files, conversations or targets, and for files without a weight above 0.
        """
        if set(files) != set(mixture) or not mixture or min(mixture.values()) <= 0:
            raise InputError(
                f"the mixture names {sorted(mixture)}, there are files for {sorted(files)}; weights are > 0"
            )
        self.kinds = sorted(mixture, key=lambda kind: (mixture[kind], kind))
        self.pad, self.seed, self.max_len = tokenizer.stops[0], seed, max_len
        lead = 1 if tokenizer.chat is None else tokenizer.chat.lead
        self.lead = lead or 0  # ids that only the first of a row begins with
        self.weights = [mixture[kind] / sum(mixture.values()) for kind in self.kinds]
        self.turns, self.align = turns, align
        self.together = {
            number for number, kind in enumerate(self.kinds) if kind in together and turns > 1 and lead is not None
        }
        self.counts = TalkCounts()
        self.rows: list[list[Row]] = []
        for kind in self.kinds:
            every = (one for path in files[kind] for one in _each(Path(path), tokenizer, align))
            rows, counts = fitted(kind, every, tokenizer.stops, max_len + (align == 1))
            self.rows.append(rows)
            self.counts += counts
        self._chunk = lru_cache(maxsize=2)(self._draw)
        self._epoch = lru_cache(maxsize=4 * len(self.kinds))(self._order)

    def batch(self, step: int, count: int, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, targets) of one step for one rank, int64 (rows, longest of all ranks rounded up to 16).

        The `count` conversations of a rank are so many rows, or fewer where some share one. Rows are padded with
        what ends an answer and the target -1.
        """
        chunk, place = divmod(step, CHUNK_STEPS)
        chosen = self._chunk(chunk, count * world)[place]
        longest = max(map(self._length, chosen))
        width = longest + -longest % math.lcm(PAD_TO, self.align)
        mine = chosen[rank::world]
        ids = np.full((len(mine), width), self.pad, np.int64)
        wanted = np.full((len(mine), width), -1, np.int64)
        for row, drawn in enumerate(mine):
            inputs, after = self._joined(drawn)
            ids[row, : len(inputs)], wanted[row, : len(after)] = inputs, after
        return ids, wanted

    def _joined(self, drawn: Sequence[Drawn]) -> tuple[np.ndarray, np.ndarray]:
        """Return (inputs, targets) of conversations one after the other, with one beginning."""
        parts = [self.rows[kind][number] for kind, number in drawn]
        first, rest = parts[0], [(ids[self.lead :], mask[self.lead :]) for ids, mask in parts[1:]]
        ids, mask = zip(*map(self._whole, (first, *rest)), strict=True)
        if self.align == 1:
            return targets(np.concatenate(ids), np.concatenate(mask))
        inputs, after = targets(np.append(np.concatenate(ids), self.pad), np.append(np.concatenate(mask), 0))
        return inputs, after

    def _whole(self, part: Row) -> Row:
        """Fill a part up to a multiple of `align` with what ends an answer, learnt like that."""
        short = -len(part[0]) % self.align
        return (np.pad(part[0], (0, short), constant_values=self.pad), np.pad(part[1], (0, short), constant_values=1))

    def _length(self, drawn: Sequence[Drawn]) -> int:
        """Return the length of the row of inputs that these make."""
        sizes = [len(self.rows[kind][number][0]) - self.lead for kind, number in drawn]
        sizes[0] += self.lead
        if self.align == 1:
            return sum(sizes) - 1
        # the last id of a row is an input, too
        return sum(size + -size % self.align for size in sizes)

    def _draw(self, chunk: int, count: int) -> list[list[tuple[Drawn, ...]]]:
        """Return the rows of the steps of one chunk; steps hold rows of similar length, and as many of them."""
        size = CHUNK_STEPS * count
        if size < len(self.kinds) ** 2:
            raise InputError(f"{count} rows are too few for {len(self.kinds)} kinds of conversation")
        before, after = self._drawn(chunk * size), self._drawn((chunk + 1) * size)
        drawn = [
            (kind, self._pick(kind, draw))
            for kind in range(len(self.kinds))
            for draw in range(before[kind], after[kind])
        ]
        alone = [(one,) for one in drawn if one[0] not in self.together]
        shared = [one for one in drawn if one[0] in self.together]
        rows = [*alone, *self._shared(shared, min(self.turns, count), chunk)]
        rows.sort(key=self._length)
        bounds = [len(rows) * place // CHUNK_STEPS for place in range(CHUNK_STEPS + 1)]
        steps = [rows[start:end] for start, end in pairwise(bounds)]
        order = np.random.default_rng([self.seed, chunk]).permutation(CHUNK_STEPS)
        return [steps[place] for place in order]

    def _drawn(self, total: int) -> list[int]:
        """Return how many of each kind the first `total` hold; the heaviest, which is last, takes the rest."""
        counts = [int(total * weight) for weight in self.weights[:-1]]
        return [*counts, total - sum(counts)]

    def _shared(self, drawn: Sequence[Drawn], turns: int, chunk: int) -> Iterator[tuple[Drawn, ...]]:
        """Yield rows of `turns` conversations in any order. What does not fit whole behind the others is left out."""
        order = np.random.default_rng([self.seed, chunk, turns]).permutation(len(drawn))
        for start in range(0, len(drawn), turns):
            row: tuple[Drawn, ...] = ()
            for one in (drawn[place] for place in order[start : start + turns]):
                if not row or self._length((*row, one)) <= self.max_len:
                    row += (one,)
            yield row

    def _pick(self, kind: int, draw: int) -> int:
        epoch, place = divmod(draw, len(self.rows[kind]))
        return int(self._epoch(kind, epoch)[place])

    def _order(self, kind: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, kind, epoch]).permutation(len(self.rows[kind]))
