"""base: next-token training on documents, measured in bits per byte beside gzip and xz."""

from typing import Any

import numpy as np

from data.config import Making
from data.report.compressors import anchors
from data.tokens.loader import LOADERS, heldout
from data.tokens.tokenizer import BOS
from trainer.config import Keeping, PhaseConfig
from trainer.evaluation.evaluate import bits_per_byte
from trainer.parallel.process_group import Ranks
from trainer.run import phase_run


def run(config: PhaseConfig, making: Making, keeping: Keeping, ranks: Ranks) -> dict[str, Any]:
    """Train, measure on the held-out documents, publish; all that the first process knows of the result."""
    with phase_run(config, making, keeping, ranks) as phase:
        tokens, text = phase.input("tokens"), phase.input("text")
        train = sorted(tokens.glob("train-*.bin"))
        loader = LOADERS[config.packing](train, config.sequence_len, config.rows, config.seed, phase.tokenizer.sha256)

        def batch(step: int) -> tuple[np.ndarray, ...]:
            rows = loader.batch(step)  # (rows, T + 1)
            ids, targets = rows[:, :-1], rows[:, 1:]
            return (ids, targets, loader.documents(ids)) if config.document_masks else (ids, targets)

        trained = phase.train(phase.first_model(), batch, loader)
        if trained is None:
            return {}
        model, final = trained
        about: dict[str, Any] = {"tokens": config.steps * config.rows * config.sequence_len}
        if val := sorted(tokens.glob("val-*.bin")):
            text_of = heldout(val, phase.tokenizer_folder, config.sequence_len)
            about |= bits_per_byte(model, text_of, phase.tokenizer.special(BOS) if config.document_masks else None)
            about |= anchors(sorted((text / "val").glob("*.txt")))
        return phase.publish(model, final, about)
