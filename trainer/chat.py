"""Terminal chat with PyTorch: an `Engine` for `trainer.engines.conversation` around the decoder."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch

from data.tokens import tokenizer
from trainer import device
from trainer.engines.conversation import ChatSession
from trainer.model import export, generate, hooks


class Torch:
    """The decoder of `trainer.model` as an `Engine`."""

    def __init__(self, folder: Path, temperature: float, top_k: int, seed: int, num_ids: int = 0) -> None:
        """Load the model of a Hugging Face folder. Raises Refused."""
        machine = device.prepare()
        self.where = f"PyTorch on {machine.device.type}"
        self.model = export.load_for_inference(folder, machine)
        self.positions = self.model.config.max_position_embeddings
        self.align = hooks.align(self.model.config)
        self.temperature, self.top_k, self.num_ids = temperature, top_k, num_ids
        self.generator = torch.Generator(machine.device).manual_seed(seed)

    def tokens(self, prompt: Sequence[int], stop: Collection[int], max_new: int) -> Iterator[int]:
        how = (self.temperature, self.top_k, self.generator, self.num_ids)
        return generate.stream(self.model, prompt, stop, max_new, *how)


def open_talk(folder: Path, name: str, temperature: float, top_k: int, max_new: int, seed: int) -> ChatSession:
    """Return a conversation with the model of a folder; `name` is the displayed name. Raises Refused, DataError."""
    hf = export.folder_of_model(folder)
    export.check_tokenizer(hf)
    words = tokenizer.load(hf)
    return ChatSession(Torch(hf, temperature, top_k, seed, words.vocab_size), words, max_new, name)
