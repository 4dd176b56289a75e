"""A model's own way to write conversations: the Jinja template that lies beside its tokenizer.

In: the template, messages. Out: ids, and which of them are learnt. The template is rendered with a mark in the place of
each message, so that what somebody says is text, never a special token; apart from that, ids are those that
`transformers` and vLLM make of the same messages. What a model has to say by itself is learnt: the answer, what the
template puts in front of it behind the generation prompt, and the token that ends it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.errors import DataError, InputError

MARK = re.compile("\ue000([0-9]+)\ue001")
PROBE = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
Encode = Callable[[str], Sequence[int]]


class ChatTemplate:
    """The chat template of a model, which writes conversations as tokens."""

    def __init__(
        self, source: str, names: Mapping[str, str], special: Mapping[str, int], encode: Encode, stops: Sequence[int]
    ) -> None:
        """Make ready a template, which is tried on a short conversation.

        names: texts of `bos_token` and so on; special: ids of added tokens; encode: text to ids, without specials;
        stops: ids that end an answer, by what the model says of itself. Raises DataError for a template that nobody
        can learn conversations from.
        """
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        jinja = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        jinja.globals["raise_exception"] = _refuse
        self.names, self.special, self.encode = dict(names), dict(special), encode
        words = sorted(self.special, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, words))})" if words else r"(?!)()")
        try:
            self._template = jinja.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"the chat template cannot be read: {error}") from None
        try:
            behind = self._literals(PROBE[:2], False)[-1]
            self.opening = self._literals(PROBE[:1], True)[-1]
        except InputError as error:
            raise DataError(str(error)) from None
        ends = [self.special[one] for one in self._special.findall(behind)]
        if not ends:
            raise DataError(f"the chat template ends an answer with {behind!r}, which has no token to stop at")
        known = [one for one in ends if one in stops]
        self.stops = tuple(dict.fromkeys([*(known or ends)[:1], *stops]))
        self.lead = self._lead()

    def render(self, messages: Sequence[Mapping[str, Any]], align: int = 1) -> tuple[list[int], list[int]]:
        """Return (ids, mask); see `data.chat.conversations.render`. Raises InputError."""
        return self._ids(messages, False, align)

    def prompt(self, messages: Sequence[Mapping[str, Any]], align: int = 1) -> list[int]:
        """Return the ids that ask for the next answer. Raises InputError."""
        return self._ids(messages, True, align)[0]

    def _lead(self) -> int | None:
        """Return with how many ids every conversation begins, before its first question.

        None where several cannot simply follow one another, since the template writes an earlier turn otherwise.
        """
        one, two = self.render(PROBE[:2])[0], self.render(PROBE)[0]
        lead = 2 * len(one) - len(two)
        return lead if 0 <= lead < len(one) and one + one[lead:] == two else None

    def _literals(self, messages: Sequence[Mapping[str, Any]], asks: bool) -> list[str]:
        """Return the texts before, between and behind the messages."""
        marked = [{"role": one["role"], "content": f"\ue000{at}\ue001"} for at, one in enumerate(messages)]
        try:
            text = self._template.render(messages=marked, add_generation_prompt=asks, **self.names)
        except Exception as error:  # a template may do anything that its sandbox allows
            raise InputError(f"the model's chat template refuses this conversation: {error}") from None
        parts = MARK.split(text)
        if [int(one) for one in parts[1::2]] != list(range(len(messages))):
            raise InputError("the model's chat template does not write every message once, in their order")
        return parts[::2]

    def _ids(self, messages: Sequence[Mapping[str, Any]], asks: bool, align: int) -> tuple[list[int], list[int]]:
        literals = self._literals(messages, asks)
        row = _Row(self.encode)
        for at, literal in enumerate(literals):
            if at and messages[at - 1]["role"] == "assistant":
                literal = self._end_answer(row, literal)
                if (at < len(messages) or asks) and align > 1:
                    row.flush()
                    row.add_ids([self.stops[0]] * (-len(row.ids) % align), 1)
            if at < len(messages) and messages[at]["role"] == "assistant":
                if not literal.startswith(self.opening):
                    raise InputError(
                        f"the model's chat template begins an answer with {literal!r}, and asks for one with "
                        f"{self.opening!r}"
                    )
                self._add(row, self.opening, 0)
                row.flush()
                self._add(row, literal[len(self.opening) :], 1)
                row.add(text_of(messages[at]["content"]), 1)
            else:
                self._add(row, literal, 0)
                if at < len(messages):
                    row.add(text_of(messages[at]["content"]), 0)
        row.flush()
        return row.ids, row.mask

    def _end_answer(self, row: "_Row", literal: str) -> str:
        """Add what ends an answer, which is learnt; the rest of the text behind it."""
        parts = self._special.split(literal)
        at = next((at for at in range(1, len(parts), 2) if self.special[parts[at]] in self.stops), None)
        if at is None:
            raise InputError(f"the model's chat template ends this answer with {literal!r}: no token to stop at")
        self._add(row, "".join(parts[: at + 1]), 1)
        return "".join(parts[at + 1 :])

    def _add(self, row: "_Row", literal: str, learnt: int) -> None:
        for at, part in enumerate(self._special.split(literal)):
            if at % 2:
                row.flush()
                row.add_ids([self.special[part]], learnt)
            else:
                row.add(part, learnt)


class _Row:
    """Ids, and text that waits to become ids together with what follows it."""

    def __init__(self, encode: Encode) -> None:
        self.ids: list[int] = []
        self.mask: list[int] = []
        self._encode, self._text, self._learnt = encode, "", 0

    def add(self, text: str, learnt: int) -> None:
        if learnt != self._learnt:
            self.flush()
        self._text, self._learnt = self._text + text, learnt

    def add_ids(self, ids: Sequence[int], learnt: int) -> None:
        self.ids += ids
        self.mask += [learnt] * len(ids)

    def flush(self) -> None:
        text, self._text = self._text, ""
        if text:
            self.add_ids(self._encode(text), self._learnt)


def text_of(content: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a message; of an answer in parts its texts, since calls of a tool are nanochat's."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type", "text") == "text")


def _refuse(words: str) -> None:
    import jinja2

    raise jinja2.TemplateError(words)
