"""A conversation with a model, whichever engine computes it: turn after turn; words appear as they are made.

In: questions; an engine that goes on with ids; the tokenizer. Out: answers, piece by piece. No torch here.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from data.chat import conversations
from data.tokens.pieces import as_text
from data.tokens.tokenizer import Tokenizer
from trainer.errors import Refused
from trainer.talk import questions


class Engine(Protocol):
    """What goes on with a prompt."""

    positions: int
    """How many tokens it holds."""

    align: int
    """An answer begins at a multiple of so many tokens."""

    def tokens(self, prompt: Sequence[int], stop: Collection[int], max_new: int) -> Iterator[int]:
        """Yield what follows, id by id, at most so many; it may go on behind an id of `stop`."""


def room_of(positions: int, max_new: int) -> int:
    """Return how many ids a prompt may have, so that an answer fits behind it: half of the positions at least."""
    return positions - min(max_new, positions // 2)


class Talk:
    """One conversation."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, max_new: int) -> None:
        self.engine, self.tokenizer, self.max_new = engine, tokenizer, max_new
        self.messages: list[conversations.Message] = []
        self.has_forgotten = False

    def forget(self) -> None:
        """Begin anew."""
        self.messages, self.has_forgotten = [], False

    def say(self, words: str) -> Iterator[str]:
        """Yield the answer, piece by piece.

        What no longer fits into the model's positions is forgotten, the oldest turns first, which is told once. Raises
        Refused for a question that is too long by itself.
        """
        words = words.encode("utf-8", "replace").decode()  # what was no text in the terminal is none for the tokenizer
        room = room_of(self.engine.positions, self.max_new)
        question = {"role": "user", "content": words}
        kept, prompt = conversations.recent([*self.messages, question], self.tokenizer, room, self.engine.align)
        if len(prompt) > room:
            raise Refused(f"{len(prompt)} tokens at once are too many; this model takes {room}")
        if len(kept) <= len(self.messages) and not self.has_forgotten:
            self.has_forgotten = True
            print(
                f"this model reads {room} tokens at a time: the oldest turns are forgotten from here on",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        self.messages = kept
        pieces = []
        for piece in as_text(self._tokens(prompt), self.tokenizer.decode):
            pieces.append(piece)
            yield piece
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        stop = set(self.tokenizer.stops)
        for token in self.engine.tokens(prompt, stop, self.max_new):
            if token in stop:
                return
            yield token


def tell(talk: Talk, words: str) -> None:
    for piece in talk.say(words):
        print(piece, end="", flush=True)
    print(flush=True)


def converse(talk: Talk) -> None:
    """Answer line by line, until the end of the input. Ctrl-C ends an answer; on an empty line it ends the talk."""
    for words in questions(forget=talk.forget):
        try:
            tell(talk, words)
        except Refused as error:
            print(error, file=sys.stderr)
        except KeyboardInterrupt:
            print(" ...")
            talk.messages.append({"role": "assistant", "content": "..."})
