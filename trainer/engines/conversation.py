"""A conversation with a model, whichever engine computes it: turn after turn; words appear as they are made.

In: questions; an engine that goes on with ids; the tokenizer. Out: answers, piece by piece. No torch here. How they
are typed and shown: `trainer.talk`, of which this is a partner.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from data.chat import conversations
from data.tokens.pieces import as_text
from data.tokens.tokenizer import Tokenizer
from trainer.errors import Refused


class Engine(Protocol):
    """A model that continues a prompt."""

    positions: int
    """Number of tokens that its context holds."""

    align: int
    """An answer begins at a multiple of this many tokens."""

    where: str
    """The device and library it computes with, in words."""

    def tokens(self, prompt: Sequence[int], stop: Collection[int], max_new: int) -> Iterator[int]:
        """Yield the continuation, id by id, at most so many; it may go on behind an id of `stop`."""


def room_of(positions: int, max_new: int) -> int:
    """Return the longest prompt in ids, so that an answer fits behind it: half of the positions at least."""
    return positions - min(max_new, positions // 2)


class Talk:
    """One conversation."""

    goes_on: tuple[type[Exception], ...] = (Refused,)

    def __init__(self, engine: Engine, tokenizer: Tokenizer, max_new: int, name: str = "the model") -> None:
        self.engine, self.tokenizer, self.max_new, self.name = engine, tokenizer, max_new, name
        self.system = ""
        self.tokens: int | None = None
        self.messages: list[conversations.Message] = []
        self.has_forgotten = False

    def forget(self) -> None:
        """Begin anew."""
        self.messages, self.has_forgotten = [], False

    def about(self) -> str:
        """Return the name of the partner, in words."""
        return f"{self.name}, by {self.engine.where}; it reads {self.engine.positions:,} tokens"

    def choose(self, name: str) -> str:
        """Refuse: another model is another process. Return what to type."""
        return f"this is {self.name}; for another one end this (Ctrl-D) and type: ./inv chat {name}"

    def say(self, words: str) -> Iterator[str]:
        """Yield the answer, piece by piece.

        What no longer fits into the model's positions is forgotten, the oldest turns first, which is told once. Raises
        Refused for a question that is too long by itself.
        """
        self.tokens = None
        words = words.encode("utf-8", "replace").decode()  # the tokenizer takes valid text only
        told = self.system.encode("utf-8", "replace").decode()
        head = [{"role": "system", "content": told}] if told else []
        room = room_of(self.engine.positions, self.max_new)
        asked = [*head, *self.messages, {"role": "user", "content": words}]
        kept, prompt = conversations.recent(asked, self.tokenizer, room, self.engine.align)
        if len(prompt) > room:
            raise Refused(f"{len(prompt)} tokens at once are too many; this model takes {room}")
        if len(kept) < len(asked) and not self.has_forgotten:
            self.has_forgotten = True
            print(
                f"this model reads {room} tokens at a time: the oldest turns are forgotten from here on",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        self.messages = kept[len(head) :]
        pieces: list[str] = []
        self.tokens = 0
        try:
            for piece in as_text(self._tokens(prompt), self.tokenizer.decode):
                pieces.append(piece)
                yield piece
        finally:  # also of an answer that is cut short, after which the next question is the user's
            self.messages.append({"role": "assistant", "content": "".join(pieces) or "..."})

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        stop = set(self.tokenizer.stops)
        for token in self.engine.tokens(prompt, stop, self.max_new):
            if token in stop:
                return
            self.tokens = (self.tokens or 0) + 1
            yield token
