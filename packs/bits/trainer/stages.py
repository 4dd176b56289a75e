"""Training stages of a 1.58-bit model: conversion, layer-wise distillation, continued pre-training, distillation.

bits1 converts a full-precision model to a ternary model, which is unusable before training. bits1.9 trains the outputs
of each layer toward the teacher. bits2 continues pre-training while rounding is phased in. bits3 trains on
conversations with a teacher that was trained on the same conversations. The field `bits` of the config holds the
settings of a stage.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from data.chat.conversation_counts import ConversationCounts
from data.config import StepContext
from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig
from packs.bits.trainer.conversion import converted
from packs.bits.trainer.objective import Bits
from packs.bits.trainer.ternary import layers_of, relative_error
from trainer.checkpoints.checkpoint import Checkpoint
from trainer.config import CheckpointOptions
from trainer.errors import Refused
from trainer.model import export
from trainer.model.decoder import Decoder, uninitialized_decoder
from trainer.objectives import Batch
from trainer.objectives.source import Source
from trainer.parallel.process_group import Ranks
from trainer.phases import base, conversations
from trainer.records.phase_registry import TEACHER
from trainer.run import PhaseRun, phase_run


def run(config: BitsPhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Run a stage and publish the result; return the result record, which is complete on the first process only.

    bits1 converts the model; the other stages train. Text stages also measure the held-out documents.
    """
    with phase_run(config, making, keeping, ranks) as phase:
        if not config.trains:
            made = model_converted(phase)
            return phase.publish(*made, measured(phase, *made)) if made else {}
        bits = config.bits or BitsConfig()
        source = base.rows_of(phase) if config.reads_text else conversations.rows_of(phase)
        model = phase.initial_model()
        teacher = phase.load_frozen_model(TEACHER) if bits.has_teacher else None
        objective = Bits(bits, model, teacher)
        trained = phase.train(model, StatefulSource(source, objective), objective)
        if trained is None:
            return {}
        return phase.publish(*trained, measured(phase, *trained) if config.reads_text else {})


def measured(phase: PhaseRun, model: Decoder, final: Checkpoint) -> dict[str, Any]:
    """Return the measures of a text model, and the relative rounding error of the matrices, by layer and on average.

    The error of a matrix is the squared norm of the rounding change divided by the squared norm of the matrix.
    """
    about = base.measured(phase, model, final)
    about |= {"perplexity": math.exp(about["loss"])} if "loss" in about else {}
    by_layer: dict[str, list[float]] = {}
    for name, one in layers_of(model).items():
        by_layer.setdefault(name.split(".")[2], []).append(relative_error(one.weight.detach(), one.how))
    errors = [statistics.fmean(some) for some in by_layer.values()]
    return about | ({"rounding_error": statistics.fmean(errors), "rounding_by_layer": errors} if errors else {})


def model_converted(phase: PhaseRun) -> tuple[Decoder, Checkpoint] | None:
    """Return the model of the preceding phase in the shape of this phase, with a checkpoint of step 0.

    Return None on all processes except the first. New weights are the gains of SubLN norms. Raises Refused when the
    shapes differ in more than SubLN and rounding.
    """
    if not phase.ranks.is_first:
        return None
    given, wanted = export.read_config(export.folder_of_model(phase.input(phase.before))), phase.config.model
    if given.with_features_of(wanted) != wanted or given.ternary:
        name = phase.making.inputs[phase.before].name
        raise Refused(f"{phase.config.phase} cannot continue from {name}, which has another shape: {given}")
    before = uninitialized_decoder(given, device="cpu")
    phase.load_weights(before, phase.before)
    model = converted(before, wanted, phase.machine.dtype(phase.config))
    return model.to(phase.machine.device), phase.save_untrained(model)


class StatefulSource(Source):
    """A data source that stores the state of the objective in checkpoints."""

    def __init__(self, source: Source, objective: Bits) -> None:
        self.source, self.objective = source, objective

    def batch(self, step: int, *model: Decoder) -> Batch:
        return self.source.batch(step)

    def conversation_counts(self) -> ConversationCounts | None:
        return self.source.conversation_counts()

    def cursor(self, step: int) -> dict[str, Any]:
        return self.source.cursor(step)

    def resume(self, cursor: Mapping[str, Any]) -> None:
        self.source.resume(cursor)

    def state(self) -> dict[str, Tensor]:
        return self.objective.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.objective.load(state)
