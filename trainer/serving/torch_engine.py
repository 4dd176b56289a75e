"""Engine for `trainer.serving.server` with the project's decoder, for models that no other engine decodes.

Examples are models trained to decode in blocks.
"""

import os
import sys
import time
from collections.abc import Collection, Generator
from pathlib import Path

import torch

from data.tokens import tokenizer as tokenizers
from trainer import device
from trainer.errors import Refused
from trainer.model import changes, export, hooks
from trainer.model.decoder import Decoder
from trainer.model.generate import decoding, steps
from trainer.serving.completion_request import CompletionRequest
from trainer.serving.text_engine import TextEngine


class TorchEngine(TextEngine):
    """Engine for the model of a folder, in torch."""

    def __init__(self, folder: Path, dtype: str, max_model_len: int) -> None:
        """Load the model of a folder. Raises Refused, DataError."""
        machine = device.prepare()
        folder = export.folder_of_model(folder)
        export.check_tokenizer(folder)
        began = time.monotonic()
        kind = machine.fast if dtype == "auto" else getattr(torch, dtype)
        self.decoder = export.read(folder, kind).eval().to(machine.device)
        self.variants: dict[str, Decoder] = {}
        self.tokenizer = tokenizers.load(folder)
        print(f"Loading weights took {time.monotonic() - began:.2f} seconds", file=sys.stderr, flush=True)
        config = self.decoder.config
        self.align = hooks.align(config)
        room = config.max_position_embeddings // self.align * self.align
        self.room = min(room, max_model_len or room)

    def load_variant(self, name: str, folder: Path) -> None:
        change = changes.change_in(folder)
        if change is None:
            raise Refused(f"{folder} holds no change of a model, such as an adapter")
        self.variants[name] = change.variant_of(self.decoder, folder)

    def unload_variant(self, name: str) -> None:
        self.variants.pop(name, None)

    def generate_ids(self, ask: CompletionRequest, stop: Collection[int]) -> Generator[list[int], None, None]:
        """Yield the new final ids after each forward pass."""
        generator = torch.Generator(self.decoder.head.device)
        generator.manual_seed(ask.seed if ask.seed is not None else int.from_bytes(os.urandom(4), "big"))
        how = (ask.max_tokens, ask.temperature, max(0, ask.top_k), generator)
        decoder = self.variants.get(ask.variant) if ask.variant else self.decoder
        if decoder is None:
            raise Refused(f"the model {ask.variant} was unloaded before the answer began")
        own = decoding(decoder, [ask.ids], stop, *how)
        if own is None:
            yield from ([int(one)] for one in steps(decoder, [ask.ids], *how, self.tokenizer.vocab_size))
        else:
            yield from (found[0] for found in own)
