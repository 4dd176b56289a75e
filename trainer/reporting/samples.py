"""Samples of the model's text during training: the same few prompts again and again, for people to read.

The sampler takes the current model and the tokenizer, and returns prompts and texts. Decoding is greedy and consumes no
random numbers, so sampling does not change the training.
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
    """Sampler that asks the model fixed prompts, as chat or as text continuation."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, is_talk: bool) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.is_talk, self.prompts = is_talk, TALK if is_talk else TEXT
        as_ids = self._chat_prompt if is_talk else self._text
        room = model.config.max_position_embeddings - 1
        self.ids = [as_ids(one)[:room] for one in self.prompts]

    def __call__(self) -> list[dict[str, str]]:
        stop = set(self.tokenizer.stops)
        with uncompiled(self.model):  # training is compiled for different shapes
            said = generate(self.model, self.ids, stop, MAX_NEW, num_ids=self.tokenizer.vocab_size)
        texts = [self.tokenizer.decode(ids, goes_on=not self.is_talk) for ids in said]
        return [{"prompt": prompt, "text": text} for prompt, text in zip(self.prompts, texts, strict=True)]

    def _chat_prompt(self, words: str) -> list[int]:
        message: Mapping[str, str] = {"role": "user", "content": words}
        return conversations.prompt([message], self.tokenizer)

    def _text(self, words: str) -> list[int]:
        return [*self.tokenizer.begin, *self.tokenizer.encode(words)]


def is_due(step: int, steps: int, times: int) -> bool:
    """Return True if the model is sampled after `step`: `times` times at equal distances, the last at the end."""
    return times > 0 and step * times // steps > (step - 1) * times // steps
