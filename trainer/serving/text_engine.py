"""The base of every engine behind `trainer.serving.server`: a model's ids become text, piece by piece.

In: an `Ask`, and a model that goes on with ids. Out: `Piece`s; the last one says why the answer ends. No torch here.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from dataclasses import dataclass

from data.tokens.tokenizer import Tokenizer
from trainer.serving.asks import Ask


@dataclass(frozen=True)
class Piece:
    """Text that has become final."""

    text: str
    tokens: int
    """Number of tokens of the answer so far."""
    finish: str | None = None
    """Reason why it is the last: `stop` or `length`."""
    error: str = ""


class TextEngine(ABC):
    """A model that computes answers."""

    tokenizer: Tokenizer
    room: int
    """Tokens of a prompt and its answer."""
    align: int = 1
    """An answer begins at a multiple of this many tokens."""

    @abstractmethod
    def passes(self, ask: Ask, stop: Collection[int]) -> Generator[list[int], None, None]:
        """Yield the new final ids after each forward pass, at most `ask.max_tokens`.

        It may go on behind an id of `stop`; whoever has read that closes the iterator, which frees what it holds.
        """

    def answer(self, ask: Ask) -> Generator[Piece, None, None]:
        """Yield the answer piece by piece; the last one says why it ends."""
        stop = set(self.tokenizer.stops)
        waiting, said, given, count = list[int](), "", 0, 0  # given: characters that were yielded
        goes_on = not ask.is_chat  # a completion goes on behind its prompt
        held = max(map(len, ask.stop), default=1) - 1  # may be the beginning of a text that ends it
        passes = self.passes(ask, stop)
        try:
            for new in passes:
                ended = next((at for at, token in enumerate(new) if token in stop), None)
                waiting += new[:ended]
                count += len(new[:ended])
                text = self.tokenizer.decode(waiting, goes_on)
                if not text.endswith("\ufffd"):  # else ids wait whose bytes end inside a character
                    said, goes_on, waiting = said + text, goes_on or bool(waiting), []
                elif ended is not None:
                    said += text.rstrip("\ufffd")
                if (cut := min((at for one in ask.stop if (at := said.find(one)) >= 0), default=-1)) >= 0:
                    yield Piece(said[given:cut], count, "stop")
                    return
                if ended is not None:
                    yield Piece(said[given:], count, "stop")
                    return
                final = max(given, len(said) - held)
                yield Piece(said[given:final], count)
                given = final
            yield Piece(said[given:] + self.tokenizer.decode(waiting, goes_on).rstrip("\ufffd"), count, "length")
        finally:
            passes.close()
