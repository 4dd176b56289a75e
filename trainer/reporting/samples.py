"""Samples of the model's text while it learns: the same few prompts again and again, for people to read.

In: the model as it is, the tokenizer. Out: prompts and texts, greedy, so that nothing random is used up: training goes
on as if nobody had asked.
"""

from collections.abc import Mapping

from data.chat import conversations
from data.tokens.tokenizer import Tokenizer
from trainer.model.decoder import Decoder
from trainer.model.generate import generate
from trainer.speed import uncompiled

TEXT = ("Return the", "This function", "A file is")
TALK = ("Who are you?", "What does os.path.join do?", "Why is the sky blue?")
MAX_NEW = 40


class Sampler:
    """Asks a model its questions: as talk, or as the beginning of a text."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, is_talk: bool) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.is_talk, self.prompts = is_talk, TALK if is_talk else TEXT
        as_ids = self._talk if is_talk else self._text
        room = model.config.max_position_embeddings - 1
        self.ids = [as_ids(one)[:room] for one in self.prompts]

    def __call__(self) -> list[dict[str, str]]:
        stop = set(self.tokenizer.stops)
        with uncompiled(self.model):  # training was compiled for other shapes
            said = generate(self.model, self.ids, stop, MAX_NEW)
        texts = [self.tokenizer.decode(ids, goes_on=not self.is_talk) for ids in said]
        return [{"prompt": prompt, "text": text} for prompt, text in zip(self.prompts, texts, strict=True)]

    def _talk(self, words: str) -> list[int]:
        message: Mapping[str, str] = {"role": "user", "content": words}
        return conversations.prompt([message], self.tokenizer)

    def _text(self, words: str) -> list[int]:
        return [*self.tokenizer.begin, *self.tokenizer.encode(words)]


def is_due(step: int, steps: int, times: int) -> bool:
    """Return whether the model is asked after `step`: at equal distances, the last time at the end."""
    return times > 0 and step * times // steps > (step - 1) * times // steps
