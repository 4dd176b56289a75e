"""Talking to a model: one answer, or turn after turn; words appear as they are made."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from data import chat, tokenizer
from data.tokenizer import BOS, END
from trainer import export, generate, machine
from trainer.errors import Refused
from trainer.model import Decoder
from trainer.talk import questions


class Talk:
    """A conversation with the model of one folder."""

    def __init__(self, folder: Path, temperature: float, top_k: int, max_new: int, seed: int) -> None:
        """Raises Refused, DataError."""
        machine.prepare()
        hf = export.folder_of_model(folder)
        export.check_tokenizer(hf)
        self.model: Decoder = export.read(hf).eval()
        self.tokenizer = tokenizer.load(hf)
        self.temperature, self.top_k, self.max_new = temperature, top_k, max_new
        self.generator = torch.Generator().manual_seed(seed)
        self.messages: list[dict[str, str]] = []

    def say(self, words: str) -> Iterator[str]:
        """The answer, piece by piece. What no longer fits into the model's positions is forgotten, oldest first."""
        words = words.encode("utf-8", "replace").decode()  # what was no text in the terminal is none for the tokenizer
        self.messages.append({"role": "user", "content": words})
        prompt = chat.prompt(self.messages, self.tokenizer)
        room = self.model.config.max_position_embeddings - min(
            self.max_new, self.model.config.max_position_embeddings // 2
        )
        while len(prompt) > room and len(self.messages) > 1:
            del self.messages[:2]
            prompt = chat.prompt(self.messages, self.tokenizer)
        if len(prompt) > room:
            self.messages.clear()
            raise Refused(f"{len(prompt)} tokens at once are too many; this model takes {room}")
        pieces = []
        for piece in generate.as_text(self._tokens(prompt), self.tokenizer.decode):
            pieces.append(piece)
            yield piece
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _tokens(self, prompt: list[int]) -> Iterator[int]:
        stop = {self.tokenizer.special(END), self.tokenizer.special(BOS)}
        new = generate.steps(self.model, [prompt], self.max_new, self.temperature, self.top_k, self.generator)
        for chosen in new:
            token = int(chosen)
            if token in stop:
                return
            yield token


def tell(talk: Talk, words: str) -> None:
    for piece in talk.say(words):
        print(piece, end="", flush=True)
    print(flush=True)


def converse(talk: Talk) -> None:
    """Answer line by line, until the end of the input. Ctrl-C ends an answer; on an empty line it ends the talk."""
    for words in questions(forget=lambda: talk.messages.clear()):
        try:
            tell(talk, words)
        except Refused as error:
            print(error, file=sys.stderr)
        except KeyboardInterrupt:
            print(" ...")
            talk.messages.append({"role": "assistant", "content": "..."})
