"""The phase base: next-token training on documents, evaluated in bits per byte against gzip and xz."""

from collections.abc import Mapping
from typing import Any

from data.config import HELDOUT_BYTES, HELDOUT_TOKENS, StepContext
from data.report.compressors import anchors
from data.tokens.loader import LOADERS, Loader, heldout
from data.tokens.stream import Stream
from data.tokens.token_file import token_files
from trainer.checkpoints.checkpoint import Checkpoint
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.evaluation.evaluate import bits_per_byte
from trainer.model.decoder import Decoder
from trainer.objectives import Batch
from trainer.objectives.source import Source
from trainer.parallel.process_group import Ranks
from trainer.run import PhaseRun, phase_run


def run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train, evaluate on held-out documents and publish; return facts about the artifact, {} on other processes."""
    with phase_run(config, making, keeping, ranks) as phase:
        trained = phase.train(phase.initial_model(), rows_of(phase))
        if trained is None:
            return {}
        model, final = trained
        return phase.publish(model, final, measured(phase, model, final))


def rows_of(phase: PhaseRun) -> "Rows":
    """Return the batch source of a text phase, with the configured packing and document masks."""
    config, train = phase.config, token_files(phase.input("tokens"), "train")
    loader = LOADERS[config.packing](train, config.sequence_len, config.rows, config.seed, phase.tokenizer.sha256)
    return Rows(loader, config.document_masks)


def measured(phase: PhaseRun, model: Decoder, final: Checkpoint) -> dict[str, Any]:
    """Return the number of trained tokens, and bits per byte if the artifact has held-out documents.

    `evaluated_tokens` and `compressed_bytes` are present only if HELDOUT_TOKENS or HELDOUT_BYTES has cut the documents.
    """
    config = phase.config
    about: dict[str, Any] = {"tokens": final.step * config.rows * config.sequence_len}
    if val := token_files(phase.input("tokens"), "val"):
        text_of = heldout(val, phase.tokenizer_folder, config.sequence_len, most=HELDOUT_TOKENS)
        about |= bits_per_byte(model, text_of, phase.tokenizer.separator if config.document_masks else None)
        about |= {"evaluated_tokens": HELDOUT_TOKENS} if Stream(val).num_tokens > HELDOUT_TOKENS else {}
        about |= anchors(sorted((phase.input("text") / "val").glob("*.txt")), HELDOUT_BYTES)
    return about


class Rows(Source):
    """Batches of loader rows, with the next id as target; `with_documents` adds document numbers for masks."""

    def __init__(self, loader: Loader, with_documents: bool) -> None:
        self.loader, self.with_documents = loader, with_documents

    def batch(self, step: int, *model: Decoder) -> Batch:
        rows = self.loader.batch(step)  # (rows, T + 1)
        ids, targets = rows[:, :-1], rows[:, 1:]
        documents = {"documents": self.loader.documents(ids)} if self.with_documents else {}
        return {"ids": ids, "targets": targets, **documents}

    def cursor(self, step: int) -> dict[str, Any]:
        return self.loader.cursor(step)

    def resume(self, cursor: Mapping[str, Any]) -> None:
        self.loader.resume(cursor)
