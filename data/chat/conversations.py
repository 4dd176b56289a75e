"""Render conversations as token ids with a loss mask, and draw batches of conversations.

Source: nanochat's conversation format and mask.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from data.chat.conversation_counts import ConversationCounts
from data.chat.foreign_rows import AFTER, VARIABLES, read_dialogue
from data.chat.trained_rows import RefusedConversation, Rendered, Row, truncate_rows
from data.errors import InputError
from data.tokens.chat_template import REASONING, Dialogue, is_learnt
from data.tokens.missing_parts import is_content
from data.tokens.tokenizer import BOS, END, Tokenizer
from store import untrusted_input

Message = Mapping[str, Any]
Drawn = tuple[int, int]  # index of a kind, and index of a conversation of the kind
WITHOUT = "the model's chat format cannot express the content; fine-tune a model whose chat template can (--init)"
PAD_TO = 16
CHUNK_STEPS = 8  # number of steps drawn together and sorted by length


def read_conversations(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the conversations of a .jsonl file: `{"messages": [...]}` or a bare list on each line.

    Raises InputError.
    """
    return (row["messages"] for row in read_rows(path))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl file as dicts with `messages` and all other fields. Raises InputError."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            try:
                row = untrusted_input.row(line)
            except untrusted_input.UnusableDocument as error:
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
    """Return (ids, mask) of each row of a conversation; mask is 1 for trained tokens, the assistant's own words.

    A leading system message is merged into the first user message. An assistant's content may be a list of parts of
    type text, python (both trained) or python_output (not trained). With `align`, each question except the first begins
    at a multiple of `align` ids, after padding with <|assistant_end|>; the padding is trained. A model with its own
    chat template uses the template instead, with several rows if the template renders earlier answers differently.
    Raises InputError unless user and assistant alternate, and for content unsupported by the chat format.
    """
    if tokenizer.chat is not None:
        _check_turns(talk.messages)
        return tokenizer.chat.rows(talk, align)
    _refuse_tools(talk)
    return [_in_our_format(talk.messages, tokenizer, align)]


def _refuse_tools(talk: Dialogue) -> None:
    """Raise InputError for tools, reasoning and template variables with content: Slipway's format has none of them."""
    for number, one in enumerate(talk.messages, 1):
        if odd := next((name for name in ("tool_calls", *REASONING) if one.get(name)), ""):
            raise InputError(f"message {number} has {odd}; {WITHOUT}")
    if talk.tools:
        raise InputError(f"it has tools; {WITHOUT}")
    if odd := next((name for name, value in talk.variables.items() if is_content(value)), ""):
        raise InputError(f"{VARIABLES} of the row has {odd}; {WITHOUT}")


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
    """Return the ids of the prompt for the next answer, without a final assistant message.

    `align` is as in `render`.
    """
    if messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    if tokenizer.chat is not None:
        _check_turns(messages)
        return tokenizer.chat.prompt(Dialogue(messages), align)
    return [*render(messages, tokenizer, align=align)[0], tokenizer.special("<|assistant_start|>")]


def fit_history(
    messages: Sequence[Message], tokenizer: Tokenizer, room: int, align: int = 1
) -> tuple[list[Message], list[int]]:
    """Return the latest messages of a conversation with a prompt of at most `room` ids, and the prompt.

    The oldest question is dropped with its answer, repeatedly. A system message and the last question always stay, even
    if longer than `room`.
    """
    head = [one for one in messages[:1] if one.get("role") == "system"]
    turns = list(messages[len(head) :])
    while len(ids := prompt([*head, *turns], tokenizer, align)) > room and len(turns) > 2:
        del turns[:2]
    return [*head, *turns], ids


def targets(ids: Sequence[int] | np.ndarray, mask: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (inputs, targets), both int64 (len(ids) - 1,): the target is the next id, or -1 for untrained tokens."""
    after = np.array(ids[1:], np.int64)
    return np.array(ids[:-1], np.int64), np.where(np.array(mask[1:], bool), after, -1)


def _check_turns(messages: Sequence[Message]) -> None:
    """Raise InputError unless user and assistant alternate, after an optional system message; tools answer calls."""
    talk = messages[1:] if messages and messages[0].get("role") == "system" else messages
    before = "assistant"
    for turn, message in enumerate(talk):
        role = message.get("role")
        if role not in AFTER[before] or not turn and role != "user":
            raise InputError(f"message {turn} is by {role!r}, but {AFTER[before][0]!r} must speak")
        before = str(role)


def _merged(messages: Sequence[Message]) -> list[Message]:
    if not messages or messages[0].get("role") != "system":
        return list(messages)
    if len(messages) < 2 or messages[1].get("role") != "user":
        raise InputError("a system message must be followed by a user's")
    first = {**messages[1], "content": "\n\n".join(_text(one["content"]) for one in messages[:2])}
    return [first, *messages[2:]]


def _text(content: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a message; engines pass lists of parts to templates with parts, even for one string."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _each(path: Path, tokenizer: Tokenizer, align: int) -> Iterator[Rendered | RefusedConversation]:
    """Yield the rows of each conversation of a file, or the reason for rejecting the conversation."""
    for number, row in enumerate(read_rows(path), 1):
        try:
            yield rendered(read_dialogue(row), tokenizer, align)
        except InputError as error:
            yield RefusedConversation(f"row {row.get('row', number)}", str(error))


class Conversations:
    """Batches of several kinds of conversation, drawn by weight; a pure function of inputs and step.

    Each kind is drawn in a seeded order; all conversations of a kind are drawn once before any repeats. Kinds in
    `together` share rows: up to `turns` conversations of any of these kinds are concatenated if they fit whole, and if
    the chat template writes the same leading ids, such as a default system prompt, before all of them.
    Concatenation teaches the model to answer the last question independently of earlier questions.
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

        With `align` above 1, the conversations of a row and their turns begin at multiples of `align`, and a row has
        one input per id. Conversations without a trained token within `max_len` are left out and counted. Raises
        InputError for a kind without files, conversations or trained tokens, and for files without a positive weight.
        """
        if set(files) != set(mixture) or not mixture or min(mixture.values()) <= 0:
            raise InputError(
                f"the mixture names {sorted(mixture)}, but the files are for {sorted(files)}; weights must be above 0"
            )
        self.kinds = sorted(mixture, key=lambda kind: (mixture[kind], kind))
        self.pad, self.seed, self.max_len = tokenizer.stops[0], seed, max_len
        lead = [tokenizer.special(BOS)] if tokenizer.chat is None else tokenizer.chat.lead
        self.lead = len(lead or ())  # ids at the start of conversations, kept only at the start of a shared row
        self.weights = [mixture[kind] / sum(mixture.values()) for kind in self.kinds]
        self.turns, self.align = turns, align
        self.together = {
            number for number, kind in enumerate(self.kinds) if kind in together and turns > 1 and lead is not None
        }
        self.counts = ConversationCounts()
        self.rows: list[list[Row]] = []
        self.odd: list[set[int]] = []  # conversations with other leading ids, such as a system message: never shared
        for kind in self.kinds:
            every = (one for path in files[kind] for one in _each(Path(path), tokenizer, align))
            rows, counts = truncate_rows(kind, every, tokenizer.stops, max_len + (align == 1))
            self.rows.append(rows)
            starts = (ids[: self.lead].tolist() for ids, _ in rows)
            self.odd.append({number for number, start in enumerate(starts) if start != (lead or [])})
            self.counts += counts
        self._chunk = lru_cache(maxsize=2)(self._draw)
        self._epoch = lru_cache(maxsize=4 * len(self.kinds))(self._order)

    def batch(self, step: int, count: int, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, targets) of a step for a rank, int64 (rows, longest row of all ranks rounded up to 16).

        `count` is the number of conversations per rank, one per row, or fewer rows if conversations share rows. The
        width is also a multiple of `align`. Ids are padded with the stop token, targets with -1.
        """
        chunk, place = divmod(step, CHUNK_STEPS)
        chosen = self._chunk(chunk, count * world)[place]
        longest = max(map(self._length, chosen))
        width = longest + -longest % math.lcm(PAD_TO, self.align)
        mine = chosen[rank::world]
        ids = np.full((len(mine), width), self.pad, np.int64)
        wanted = np.full((len(mine), width), -1, np.int64)
        for row, drawn in enumerate(mine):
            inputs, after = self._concatenate(drawn)
            ids[row, : len(inputs)], wanted[row, : len(after)] = inputs, after
        return ids, wanted

    def _concatenate(self, drawn: Sequence[Drawn]) -> tuple[np.ndarray, np.ndarray]:
        """Return (inputs, targets) of concatenated conversations, with the leading ids only once."""
        parts = [self.rows[kind][number] for kind, number in drawn]
        first, rest = parts[0], [(ids[self.lead :], mask[self.lead :]) for ids, mask in parts[1:]]
        ids, mask = zip(*map(self._pad, (first, *rest)), strict=True)
        if self.align == 1:
            return targets(np.concatenate(ids), np.concatenate(mask))
        inputs, after = targets(np.append(np.concatenate(ids), self.pad), np.append(np.concatenate(mask), 0))
        return inputs, after

    def _pad(self, part: Row) -> Row:
        """Pad a conversation with stop tokens, which are trained, to a multiple of `align`."""
        short = -len(part[0]) % self.align
        return (np.pad(part[0], (0, short), constant_values=self.pad), np.pad(part[1], (0, short), constant_values=1))

    def _length(self, drawn: Sequence[Drawn]) -> int:
        """Return the number of inputs in a row of the drawn conversations."""
        sizes = [len(self.rows[kind][number][0]) - self.lead for kind, number in drawn]
        sizes[0] += self.lead
        if self.align == 1:
            return sum(sizes) - 1
        # With blocks, the last id of a row is also an input.
        return sum(size + -size % self.align for size in sizes)

    def _draw(self, chunk: int, count: int) -> list[list[tuple[Drawn, ...]]]:
        """Return the rows of each step of a chunk; the rows of a step have similar length, and steps equal sizes."""
        size = CHUNK_STEPS * count
        if size < len(self.kinds) ** 2:
            raise InputError(f"{count} rows are too few for {len(self.kinds)} kinds of conversation")
        before, after = self._counts_per_kind(chunk * size), self._counts_per_kind((chunk + 1) * size)
        drawn = [
            (kind, self._pick(kind, draw))
            for kind in range(len(self.kinds))
            for draw in range(before[kind], after[kind])
        ]
        shared = [(kind, number) for kind, number in drawn if kind in self.together and number not in self.odd[kind]]
        alone = [((kind, number),) for kind, number in drawn if kind not in self.together or number in self.odd[kind]]
        rows = [*alone, *self._pack_rows(shared, min(self.turns, count), chunk)]
        rows.sort(key=self._length)
        bounds = [len(rows) * place // CHUNK_STEPS for place in range(CHUNK_STEPS + 1)]
        steps = [rows[start:end] for start, end in pairwise(bounds)]
        order = np.random.default_rng([self.seed, chunk]).permutation(CHUNK_STEPS)
        return [steps[place] for place in order]

    def _counts_per_kind(self, total: int) -> list[int]:
        """Return the number of conversations per kind among the first `total`; the heaviest kind takes the rest."""
        counts = [int(total * weight) for weight in self.weights[:-1]]
        return [*counts, total - sum(counts)]

    def _pack_rows(self, drawn: Sequence[Drawn], turns: int, chunk: int) -> Iterator[tuple[Drawn, ...]]:
        """Yield rows of up to `turns` conversations in seeded order; drop conversations that do not fit whole."""
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
