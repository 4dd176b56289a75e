"""A multi-turn conversation with a model over any engine, streaming answers piece by piece. No torch import.

`ChatSession` implements the `Partner` protocol of `trainer.terminal_chat`, which handles the terminal.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from data.chat import conversations
from data.tokens.pieces import decode_stream
from data.tokens.tokenizer import Tokenizer
from trainer.errors import Refused


class Engine(Protocol):
    """A model continuing prompts of token ids."""

    positions: int
    """Context length in tokens."""

    align: int
    """Token alignment: answers begin at a multiple of this number."""

    where: str
    """Library and device, as text."""

    def tokens(self, prompt: Sequence[int], stop: Collection[int], max_new: int) -> Iterator[int]:
        """Yield at most `max_new` ids continuing the prompt; ids may follow an id in `stop`."""


def max_prompt_len(positions: int, max_new: int) -> int:
    """Return the maximum prompt length in ids, leaving room for `max_new` ids; at least half of the positions."""
    return positions - min(max_new, positions // 2)


class ChatSession:
    """A conversation: the message history, the engine and the tokenizer."""

    recoverable_errors: tuple[type[Exception], ...] = (Refused,)

    def __init__(self, engine: Engine, tokenizer: Tokenizer, max_new: int, name: str = "the model") -> None:
        self.engine, self.tokenizer, self.max_new, self.name = engine, tokenizer, max_new, name
        self.system = ""
        self.tokens: int | None = None
        self.messages: list[conversations.Message] = []
        self.has_dropped_turns = False

    def clear_history(self) -> None:
        """Clear the message history."""
        self.messages, self.has_dropped_turns = [], False

    def describe(self) -> str:
        """Return a description of the model, the engine and the context length."""
        return f"{self.name}, by {self.engine.where}; context: {self.engine.positions:,} tokens"

    def switch_model(self, name: str) -> str:
        """Return the command for a chat with model `name`; this process cannot switch models."""
        return f"this chat serves {self.name} only. To switch, end the chat (Ctrl-D) and run: ./inv chat {name}"

    def stream_answer(self, words: str) -> Iterator[str]:
        """Yield the answer to a question, piece by piece.

        Drop the oldest turns beyond the model's context, with a single notice on stderr. Raises Refused for a question
        longer than the context.
        """
        self.tokens = None
        words = words.encode("utf-8", "replace").decode()  # the tokenizer requires valid Unicode
        told = self.system.encode("utf-8", "replace").decode()
        head = [{"role": "system", "content": told}] if told else []
        room = max_prompt_len(self.engine.positions, self.max_new)
        asked = [*head, *self.messages, {"role": "user", "content": words}]
        kept, prompt = conversations.fit_history(asked, self.tokenizer, room, self.engine.align)
        if len(prompt) > room:
            raise Refused(f"the question has {len(prompt)} tokens; the model takes at most {room}")
        if len(kept) < len(asked) and not self.has_dropped_turns:
            self.has_dropped_turns = True
            print(
                f"the conversation exceeds {room} tokens: from now on, the model does not see the oldest turns",
                file=sys.stderr,
                flush=True,
            )
        self.messages = kept[len(head) :]
        pieces: list[str] = []
        self.tokens = 0
        try:
            for piece in decode_stream(self._tokens(prompt), self.tokenizer.decode):
                pieces.append(piece)
                yield piece
        finally:  # also store an interrupted answer: user and assistant must alternate
            self.messages.append({"role": "assistant", "content": "".join(pieces) or "..."})

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        stop = set(self.tokenizer.stops)
        for token in self.engine.tokens(prompt, stop, self.max_new):
            if token in stop:
                return
            self.tokens = (self.tokens or 0) + 1
            yield token
