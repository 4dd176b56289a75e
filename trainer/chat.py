"""Talking to a model: one answer, or turn after turn; words appear as they are made."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from data.chat import conversations
from data.tokens import tokenizer
from data.tokens.tokenizer import BOS, END
from trainer import device
from trainer.errors import Refused
from trainer.evaluation.evaluate import room_for
from trainer.model import export, generate
from trainer.model.decoder import Decoder
from trainer.talk import questions


class Talk:
    """A conversation with the model of one folder."""

    def __init__(self, folder: Path, temperature: float, top_k: int, max_new: int, seed: int) -> None:
        """Raises Refused, DataError."""
        device.prepare()
        hf = export.folder_of_model(folder)
        export.check_tokenizer(hf)
        self.model: Decoder = export.read(hf).eval()
        self.tokenizer = tokenizer.load(hf)
        self.temperature, self.top_k, self.max_new = temperature, top_k, max_new
        self.generator = torch.Generator().manual_seed(seed)
        self.messages: list[conversations.Message] = []
        self.has_forgotten = False

    def forget(self) -> None:
        """Begin anew."""
        self.messages, self.has_forgotten = [], False

    def say(self, words: str) -> Iterator[str]:
        """The answer, piece by piece.

        What no longer fits into the model's positions is forgotten, the oldest turns first, which is told once. Raises
        Refused for a question that is too long by itself.
        """
        words = words.encode("utf-8", "replace").decode()  # what was no text in the terminal is none for the tokenizer
        room = room_for(self.model, self.max_new)
        question = {"role": "user", "content": words}
        blocks = self.model.config.blocks
        align = blocks.block_size if blocks else 1
        kept, prompt = conversations.recent([*self.messages, question], self.tokenizer, room, align)
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
        for piece in generate.as_text(self._tokens(prompt), self.tokenizer.decode):
            pieces.append(piece)
            yield piece
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        stop = {self.tokenizer.special(END), self.tokenizer.special(BOS)}
        return generate.stream(
            self.model, prompt, stop, self.max_new, self.temperature, self.top_k, self.generator
        )  # fmt: skip


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
