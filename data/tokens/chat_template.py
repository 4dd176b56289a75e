"""Chat templates: render conversations with the Jinja template stored beside a model's tokenizer.

The input is the model's templates by name plus a conversation; the output is token ids and a loss mask. Text and ids
equal the output of `transformers`, with one exception: a special token spelled out in a message stays plain text.

An answer is trained in the context of inference: after the prompt rendered from all earlier messages, up to and
including the stop token. Some templates render an earlier answer differently (for example without reasoning); such an
answer ends a separate row.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from data.errors import DataError, InputError
from data.tokens import missing_parts
from data.tokens.jinja_template import END, HIDDEN, RESERVED, JinjaTemplate, Spans
from store.artifacts.sentencepiece import ALWAYS, FIRST, NOTHING
from store.untrusted import templates
from store.untrusted.templates import Beginning
from store.untrusted_input import UnusableDocument

if TYPE_CHECKING:
    import numpy as np

PROBE = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens available to templates; a config has separate id fields for the first three."""
REASONING = ("reasoning_content", "thinking", "reasoning")
# Models write reasoning with these tags, so answers keep the tags, even as special tokens.
TAGS = ("<think>", "</think>")
SHORT, MOST_KNOWN = 32, 4096  # maximum length in characters of a cached text, and maximum number of cached texts
SPACE = r"\s*"
OPENED = re.compile(r"<think>\s*\Z")
Message = Mapping[str, Any]
Part = int | tuple[str, bool]
"""A token id, or a text and a flag: True if the text continues earlier text, without a space added by the tokenizer."""
Encode = Callable[[Sequence[str], bool], Sequence["np.ndarray"]]


@dataclass(frozen=True)
class Dialogue:
    """A conversation with the tools and variables of the chat template."""

    messages: Sequence[Message]
    """Messages with role and content; answers may have reasoning_content, tool_calls and weight (0: no loss)."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """Functions available to the model."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template, such as enable_thinking."""


def is_learnt(message: Message) -> bool:
    """Return True for an assistant message without weight 0."""
    return bool(message["role"] == "assistant" and message.get("weight", 1))


@dataclass
class _Row:
    """A rendered text and the character spans to train on."""

    text: str
    spans: Spans
    targets: Spans = field(default_factory=list)

    def starts_with_turn(self, turn: "_Turn") -> bool:
        return self.text.startswith(turn.text[: turn.end])


@dataclass(frozen=True)
class _Turn:
    """An answer at the end of a text: start position, and end position after the stop token."""

    text: str
    spans: Spans
    start: int
    end: int
    is_opened: bool
    """True if `_open_reasoning` wrote the reasoning of the answer."""


class ChatTemplate:
    """Render conversations as token ids with the chat templates of a model."""

    def __init__(
        self,
        sources: Mapping[str, str],
        names: Mapping[str, str],
        added: Sequence[tuple[Any, int]],
        encode: Encode,
        stops: Sequence[int],
        lead: str = NOTHING,
    ) -> None:
        """Compile the templates and try them on a short conversation.

        sources: templates by name; `default` is required, `tool_use` renders dialogues with tools. names: texts of
        `bos_token` and the other named tokens. added: added tokens of `tokenizers` with their ids. encode: function
        from texts to ids, without added tokens. stops: ids of the tokens that end an answer, from the model's config.
        lead: positions where the tokenizer adds a leading space. Raises DataError for templates unsuitable for
        training.
        """
        if "default" not in sources:
            raise DataError(f"the chat templates are {', '.join(sources)}; a template named default is missing")
        self._templates = {name: JinjaTemplate(one) for name, one in sources.items() if name in ("default", "tool_use")}
        self.names, self._encode, self.stops, self._lead_of_texts = dict(names), encode, tuple(stops), lead
        self._ids = {one.content: number for one, number in added}
        self._added = _matching([one for one, _ in added])
        controls = [one.content for one, _ in added if one.special and one.content]
        self._firsts = sorted({one[:2] for one in controls})
        self._known: dict[tuple[str, bool], list[int]] = {}
        self._spelt = _any_of(controls)
        self._spelt_in_answers = _any_of([one for one in controls if one not in TAGS])
        self.stops = self._find_stops(stops)
        self.lead = self._find_lead()

    @property
    def is_dated(self) -> bool:
        """Return True if the rendered text depends on the current date."""
        return any(one.is_dated for one in self._templates.values())

    def fix_date(self, date: datetime) -> None:
        """Render all later texts with `date` as the current date."""
        for one in self._templates.values():
            one.date = date
        self.lead = self._find_lead()

    def rows(self, talk: Dialogue, align: int = 1) -> list[tuple[list[int], list[int]]]:
        """Return (ids, mask) of each row of a conversation; each answer is trained once, after its inference prompt.

        `align` is as in `data.chat.conversations.render`. Raises InputError if a template rejects the conversation or
        omits a part.
        """
        talk = self._prepare(talk)
        answers = [at for at, one in enumerate(talk.messages) if is_learnt(one)]
        texts = self._beginnings(talk, answers)
        whole = _Row(*texts[len(talk.messages), False])
        turns = [self._find_turn(talk, at, texts) for at in answers]
        self._check(talk, texts, {at: one.text for at, one in zip(answers, turns, strict=True) if one.is_opened})
        rows = [whole]
        for turn in reversed(turns):
            row = next((one for one in rows if one.starts_with_turn(turn)), None)
            if row is None:
                rows.append(row := _Row(turn.text, turn.spans))
            row.targets.append((turn.start, turn.end))
        found = [one for one in rows if one.targets] or [whole]
        return [self._ids_of(one, self._answer_ends(talk, one.text) if align > 1 else [], align) for one in found[::-1]]

    def prompt(self, talk: Dialogue, align: int = 1) -> list[int]:
        """Return the ids of the prompt for the next answer. Raises InputError."""
        talk = self._prepare(talk)
        text, spans = self._text(talk, True)
        ends = self._answer_ends(talk, text, asks=True) if align > 1 else []
        return self._ids_of(_Row(text, spans), ends, align)[0]

    def answer_goes_on(self, prompt: Sequence[int]) -> bool:
        """Return whether the tokenizer adds no space before an answer after this prompt, as in `rows`."""
        if self._lead_of_texts == ALWAYS:
            return not prompt or prompt[-1] not in self._ids.values()
        return self._lead_of_texts != NOTHING

    def text(self, talk: Dialogue) -> str:
        """Return the text of a conversation as rendered by the template. Raises InputError."""
        return self._text(self._prepare(talk), False)[0].replace(HIDDEN, "")

    def _find_stops(self, stops: Sequence[int]) -> tuple[int, ...]:
        """Return the ids of the stop tokens; the first is the stop token written by the template."""
        try:
            behind = templates.answer_end(lambda messages, asks: self._text(Dialogue(messages), asks)[0])
        except UnusableDocument as error:
            raise DataError(str(error)) from None
        ends = [self._id_of(one[0]) for one in self._added.finditer(behind)]
        if not ends:
            raise DataError(f"the chat template ends an answer with {behind!r}, and no token marks the end")
        known = [one for one in ends if one in stops]
        return tuple(dict.fromkeys([*(known or ends)[:1], *stops]))

    def _find_lead(self) -> list[int] | None:
        """Return the ids before the first question of a conversation without a system message.

        Return None if the template renders an earlier turn differently, because such conversations cannot be
        concatenated.
        """
        try:
            rows = self.rows(Dialogue(PROBE))
            ((one, _),) = self.rows(Dialogue(PROBE[:2]))
        except InputError:
            return None
        two, lead = rows[0][0], 2 * len(one) - len(rows[0][0])
        return one[:lead] if len(rows) == 1 and 0 <= lead < len(one) and one + one[lead:] == two else None

    def _text(self, talk: Dialogue, asks: bool) -> tuple[str, Spans]:
        """Return the rendered text of a prepared dialogue, and the spans marked by the template."""
        return self._template_for(talk).render(self._variables(talk, asks))

    def _template_for(self, talk: Dialogue) -> JinjaTemplate:
        return self._templates["tool_use" if talk.tools and "tool_use" in self._templates else "default"]

    def _variables(self, talk: Dialogue, asks: bool) -> dict[str, Any]:
        given = {"messages": talk.messages, "tools": talk.tools, "documents": None, "add_generation_prompt": asks}
        return {**self.names, **talk.variables, **given}

    def _prepare(self, talk: Dialogue) -> Dialogue:
        """Return a dialogue in the form `transformers` passes to a template, with special tokens in texts escaped."""
        messages = [self._message(one) for one in talk.messages]
        if not talk.tools and not talk.variables:
            return Dialogue(messages)
        tools, variables = (
            self._escape_special(talk.tools, self._spelt),
            self._escape_special(talk.variables, self._spelt),
        )
        return Dialogue(messages, tools, variables)

    def _message(self, message: Message) -> dict[str, Any]:
        """Return a message without null fields, with the reasoning stored under every known field name."""
        plain = {name: one for name, one in message.items() if one is not None}
        reasoning = next((plain[name] for name in REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        spelt = self._spelt_in_answers if plain["role"] == "assistant" else self._spelt
        return {name: self._escape_special(one, spelt) for name, one in plain.items()}

    def _escape_special(self, value: Any, spelt: re.Pattern[str]) -> Any:
        """Return a value with special tokens in texts escaped. Raises InputError for reserved private characters."""
        if isinstance(value, str):
            if not value.isascii() and not RESERVED.isdisjoint(value):
                raise InputError("a text has the character U+10FFFB, U+10FFFC or U+10FFFD, which Slipway reserves")
            # This prefix test is twenty times as fast as a search for all special tokens.
            if not any(one in value for one in self._firsts):
                return value
            return spelt.sub(lambda found: f"{found[0][0]}{HIDDEN}{found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {name: self._escape_special(one, spelt) for name, one in value.items()}
        return [self._escape_special(one, spelt) for one in value] if isinstance(value, (list, tuple)) else value

    def _beginnings(self, talk: Dialogue, answers: Sequence[int]) -> dict[Beginning, tuple[str, Spans]]:
        """Return the rendered texts of a prepared dialogue: the whole, and the text before and after each answer."""
        asked = [(len(talk.messages), False), *((at, True) for at in answers), *((at + 1, False) for at in answers)]
        beginnings = list(dict.fromkeys(asked))
        return dict(zip(beginnings, self._texts(talk, beginnings), strict=True))

    def _texts(self, talk: Dialogue, beginnings: Sequence[Beginning]) -> list[tuple[str, Spans]]:
        return self._template_for(talk).render_beginnings(self._variables(talk, False), beginnings)

    def _find_turn(self, talk: Dialogue, at: int, texts: Mapping[Beginning, tuple[str, Spans]]) -> _Turn:
        """Return the answer at index `at`, located after its prompt.

        Raises InputError if the answer's text does not continue the prompt, or has no stop token.
        """
        prompt, _ = texts[at, True]
        text, spans = texts[at + 1, False]
        is_opened = not text.startswith(prompt)
        if is_opened:
            text, spans = self._open_reasoning(talk.messages[at], prompt, text), []
        ends = [one for one in self._added.finditer(text, len(prompt)) if self._id_of(one[0]) in self.stops]
        if not ends:
            raise InputError(
                f"the model's chat template ends this answer with {text[len(prompt) :][-40:]!r}: no token marks the end"
            )
        return _Turn(text, spans, len(prompt), ends[-1].end(), is_opened)

    def _open_reasoning(self, answer: Message, prompt: str, text: str) -> str:
        """Return the text of an answer whose prompt opens a reasoning tag that the history omits.

        The model continues such a prompt with the reasoning, the closing tag and the answer. Raises InputError for an
        answer without reasoning, and if prompt and rendered history differ before the tag.
        """
        opened, content = OPENED.search(prompt), answer.get("content") or ""
        said, _, rest = content.partition("</think>") if "</think>" in content else ("", "", content)
        reasoning = answer.get("reasoning_content") or said.strip().removeprefix("<think>")
        same = len(os.path.commonprefix((prompt, text)))
        head = prompt[: opened.start()] if opened else prompt
        shown = next((one for one in (rest, rest.lstrip(), rest.strip()) if text.startswith(head + one)), None)
        if opened is None or shown is None or not reasoning.strip():
            why = ", and this answer has no reasoning" if opened and not reasoning.strip() else ""
            raise InputError(
                f"the model's chat template asks for an answer with {prompt[same:]!r}, but writes an answer that "
                f"begins with {text[same : same + 20]!r}{why}"
            )
        after = text[opened.start() + len(shown) :]
        return f"{prompt}{reasoning.strip()}\n</think>\n\n{rest.strip()}{after}"

    def _check(self, talk: Dialogue, texts: Mapping[Beginning, tuple[str, Spans]], opened: Mapping[int, str]) -> None:
        """Raise InputError if a part of a conversation is missing from the rendered texts of the trained answers.

        opened: texts of the answers whose reasoning `_open_reasoning` wrote, by index of the answer.
        """

        def render(changed: Dialogue, beginnings: Sequence[Beginning]) -> list[str]:
            return [text for text, _ in self._texts(changed, beginnings)]

        rendered = {beginning: text for beginning, (text, _) in texts.items()}
        source = self._template_for(talk).source
        if lost := missing_parts.find_missing_part(talk, rendered, opened, source, render):
            raise InputError(f"the model's chat template leaves out {lost}")

    def _answer_ends(self, talk: Dialogue, text: str, asks: bool = False) -> list[int]:
        """Return the positions in `text` after each answer except a final one.

        Raises InputError if the END markers appended to the answers change the rendered text.
        """
        marked = [
            {**one, "content": f"{one.get('content') or ''}{END}"} if one["role"] == "assistant" else one
            for one in talk.messages
        ]
        template = self._templates["default"]
        given = {**self.names, **talk.variables, "tools": talk.tools, "documents": None}
        pieces = template.render({**given, "messages": marked, "add_generation_prompt": asks})[0].split(END)
        if "".join(pieces) != text:
            raise InputError("the model's chat template does not show the end of each answer, which blocks need")
        places, size = list[int](), 0
        for piece in pieces[:-1]:
            size += len(piece)
            found = (one for one in self._added.finditer(text, size) if self._id_of(one[0]) in self.stops)
            if stop := next(found, None):
                places.append(stop.end())
        return places if asks or talk.messages[-1]["role"] != "assistant" else places[:-1]

    def _ids_of(self, row: _Row, ends: Sequence[int], align: int) -> tuple[list[int], list[int]]:
        """Return (ids, mask) of a row, with stop tokens after each position in `ends` up to a multiple of `align`."""
        targets = sorted(row.targets)
        if row.spans:
            targets = [(max(a, c), min(b, d)) for a, b in targets for c, d in row.spans if max(a, c) < min(b, d)]
        cuts = sorted({0, len(row.text), *ends, *(place for one in targets for place in one)})
        leads, begins = self._lead_of_texts != NOTHING, self._space_positions(row.text)
        # Pairs of an id or text and a loss flag; an empty text marks padding.
        parts = list[tuple[Part, int]]()
        for start, stop in zip(cuts, cuts[1:], strict=False):
            learnt = int(any(a <= start and stop <= b for a, b in targets))
            parts += [(one, learnt) for one in self._parts(row.text[start:stop], leads and start not in begins)]
            if stop in ends:
                parts.append((("", False), learnt))
        texts = self._encode_cached({one for one, _ in parts if not isinstance(one, int) and one[0]})
        ids, mask = list[int](), list[int]()
        for one, learnt in parts:
            before = len(ids)
            if isinstance(one, int):
                ids.append(one)
            else:
                ids += texts[one] if one[0] else [self.stops[0]] * (-before % align)
            mask += [learnt] * (len(ids) - before)
        return ids, mask

    def _space_positions(self, text: str) -> set[int]:
        """Return the positions in a text at which the tokenizer adds a leading space."""
        behind = {one.end() for one in self._added.finditer(text)} if self._lead_of_texts == ALWAYS else set()
        return {0, *behind}

    def _encode_cached(self, texts: set[tuple[str, bool]]) -> dict[tuple[str, bool], list[int]]:
        """Return the ids of texts, with a cache for short texts because templates repeat them."""
        found = dict[tuple[str, bool], list[int]]()
        for goes_on in (False, True):
            new = [one for one in texts if one not in self._known and one[1] is goes_on]
            ids = self._encode([one for one, _ in new], goes_on) if new else []
            found |= dict(zip(new, (one.tolist() for one in ids), strict=True))
        if len(self._known) < MOST_KNOWN:
            self._known |= {one: ids for one, ids in found.items() if len(one[0]) <= SHORT}
        return {one: found[one] if one in found else self._known[one] for one in texts}

    def _id_of(self, found: str) -> int:
        """Return the id of a matched added token; the match may include whitespace stripped by the token."""
        return self._ids[found] if found in self._ids else self._ids[found.strip()]

    def _parts(self, text: str, goes_on: bool) -> list[Part]:
        """Return the parts of a text: added tokens as ids, and the original text between them."""
        found, at = list[Part](), 0
        for one in self._added.finditer(text):
            found += [(text[at : one.start()].replace(HIDDEN, ""), goes_on), self._id_of(one[0])]
            at, goes_on = one.end(), self._lead_of_texts == FIRST
        found.append((text[at:].replace(HIDDEN, ""), goes_on))
        return [one for one in found if isinstance(one, int) or one[0]]


def text_of(content: str | Sequence[Mapping[str, str]] | None) -> str:
    """Return the text of a message; of an answer in parts, only text parts, since tool calls use nanochat's format."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part.get("type", "text") == "text")


def _matching(added: Sequence[Any]) -> re.Pattern[str]:
    """Return a pattern for added tokens as in `tokenizers`: longest first, some with the surrounding whitespace."""
    words = [
        f"{SPACE * one.lstrip}{re.escape(one.content)}{SPACE * one.rstrip}"
        for one in sorted(added, key=lambda one: -len(one.content))
    ]
    return re.compile("|".join(words) or r"(?!)")


def _any_of(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted((one for one in words if one), key=len, reverse=True))) or r"(?!)")
