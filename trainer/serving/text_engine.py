"""Base class of the engines behind `trainer.serving.server`: turns token ids from a model into text pieces.

An engine takes an `CompletionRequest` and yields `TextPiece`s; the last piece holds the reason for the end of the
answer. No torch here.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path

from data.tokens.tokenizer import Tokenizer
from trainer.errors import Refused
from trainer.serving.completion_request import CompletionRequest


@dataclass(frozen=True)
class TextPiece:
    """A piece of final text."""

    text: str
    tokens: int
    """Number of tokens of the answer so far."""
    finish: str | None = None
    """Reason for the end of the answer, in the last piece: `stop` or `length`."""
    error: str = ""


class TextEngine(ABC):
    """Base class of a model that computes answers."""

    tokenizer: Tokenizer
    room: int
    """Maximum tokens of a prompt and the answer together."""
    align: int = 1
    """An answer begins at a multiple of this number of tokens."""

    def load_variant(self, name: str, folder: Path) -> None:
        """Load the stored change in a folder as a variant of the model. Raises Refused."""
        raise Refused("this engine loads no variants of a model")

    def unload_variant(self, name: str) -> None:
        """Forget a variant; running answers continue."""
        raise Refused("this engine loads no variants of a model")

    @abstractmethod
    def generate_ids(self, ask: CompletionRequest, stop: Collection[int]) -> Generator[list[int], None, None]:
        """Yield the new final ids after each forward pass, at most `ask.max_tokens` ids in total.

        The iterator may continue after an id of `stop`; the caller then closes the iterator, which frees the resources.
        """

    def answer(self, ask: CompletionRequest) -> Generator[TextPiece, None, None]:
        """Yield the answer in pieces; the last piece holds the reason for the end."""
        if ask.echo or not ask.max_tokens:
            yield TextPiece(ask.echo, 0, None if ask.max_tokens else "length")
        if not ask.max_tokens:
            return
        stop = set(self.tokenizer.stops)
        waiting, said, given, count = list[int](), "", 0, 0  # given: number of characters yielded so far
        goes_on = not ask.is_chat  # a completion continues the text of the prompt
        held = max(map(len, ask.stop), default=1) - 1  # held back: possible start of a stop text
        passes = self.generate_ids(ask, stop)
        try:
            for new in passes:
                ended = next((at for at, token in enumerate(new) if token in stop), None)
                waiting += new[:ended]
                count += len(new[:ended])
                text = self.tokenizer.decode(waiting, goes_on)
                if not text.endswith("\ufffd"):  # otherwise ids wait for the rest of a character
                    said, goes_on, waiting = said + text, goes_on or bool(waiting), []
                elif ended is not None:
                    said += text.rstrip("\ufffd")
                if (cut := min((at for one in ask.stop if (at := said.find(one)) >= 0), default=-1)) >= 0:
                    yield TextPiece(said[given:cut], count, "stop")
                    return
                if ended is not None:
                    yield TextPiece(said[given:], count, "stop")
                    return
                final = max(given, len(said) - held)
                yield TextPiece(said[given:final], count)
                given = final
            yield TextPiece(said[given:] + self.tokenizer.decode(waiting, goes_on).rstrip("\ufffd"), count, "length")
        finally:
            passes.close()
