"""The stages of a model of 1.58 bits: conversion, layer-wise distillation, continued pre-training, distillation.

bits1 changes a model of full precision into a ternary one, which is broken until it was trained; bits1.9 has its layers
say what the teacher's say; bits2 reads on in the text while rounding sets in; bits3 learns conversations beside a
teacher that has learned them. What is particular to each stands in `bits` of its config.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from data.chat.talk_counts import TalkCounts
from data.config import Making
from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig
from packs.bits.trainer.conversion import converted
from packs.bits.trainer.objective import Bits
from packs.bits.trainer.ternary import layers_of, relative_error
from trainer.checkpoints.checkpoint import Checkpoint
from trainer.config import Keeping
from trainer.errors import Refused
from trainer.model import export
from trainer.model.decoder import Decoder, unfilled
from trainer.objectives import Batch
from trainer.objectives.source import Source
from trainer.parallel.process_group import Ranks
from trainer.phases import base, conversations
from trainer.records.phase_registry import TEACHER
from trainer.run import PhaseRun, phase_run


def run(config: BitsPhaseConfig, making: Making, keeping: Keeping, ranks: Ranks) -> dict[str, Any]:
    """Train or convert, measure on the held-out documents, publish; all that the first process knows of the result."""
    with phase_run(config, making, keeping, ranks) as phase:
        if not config.trains:
            made = model_converted(phase)
            return phase.publish(*made, measured(phase, made[0])) if made else {}
        bits = config.bits or BitsConfig()
        source = base.rows_of(phase) if config.reads_text else conversations.rows_of(phase)
        model = phase.first_model()
        teacher = phase.frozen(TEACHER) if bits.has_teacher else None
        objective = Bits(bits, config.steps, model, teacher)
        trained = phase.train(model, WithState(source, objective), objective)
        if trained is None:
            return {}
        return phase.publish(*trained, measured(phase, trained[0]) if config.reads_text else {})


def measured(phase: PhaseRun, model: Decoder) -> dict[str, Any]:
    """Return the measures of a model of text, and the rounding error of its matrices, by layer and on average.

    Of a matrix that is the squared length of what rounding changes over its own.
    """
    about = base.measured(phase, model)
    about |= {"perplexity": math.exp(about["loss"])} if "loss" in about else {}
    by_layer: dict[str, list[float]] = {}
    for name, one in layers_of(model).items():
        by_layer.setdefault(name.split(".")[2], []).append(relative_error(one.weight.detach(), one.how))
    errors = [statistics.fmean(some) for some in by_layer.values()]
    return about | ({"rounding_error": statistics.fmean(errors), "rounding_by_layer": errors} if errors else {})


def model_converted(phase: PhaseRun) -> tuple[Decoder, Checkpoint] | None:
    """Return the model of the phase before in the shape of this one, and its checkpoint, of step 0.

    It is None on all processes but the first. What that shape has beside the weights that are there are gains of
    norms. Raises Refused when the shapes differ in anything else.
    """
    if not phase.ranks.is_first:
        return None
    given, wanted = export.read_config(export.folder_of_model(phase.input(phase.before))), phase.config.model
    if given.with_features_of(wanted) != wanted or given.ternary:
        name = phase.making.inputs[phase.before].name
        raise Refused(f"{phase.config.phase} cannot go on from {name}: its shape is {given}")
    before = unfilled(given, device="cpu")
    phase.fill_from(before, phase.before)
    model = converted(before, wanted, phase.machine.dtype(phase.config))
    return model.to(phase.machine.device), phase.untrained(model)


class WithState(Source):
    """A source beside which checkpoints hold what the objective remembers of earlier steps."""

    def __init__(self, source: Source, objective: Bits) -> None:
        self.source, self.objective = source, objective

    def batch(self, step: int, *model: Decoder) -> Batch:
        return self.source.batch(step)

    def conversations(self) -> TalkCounts | None:
        return self.source.conversations()

    def cursor(self, step: int) -> dict[str, Any]:
        return self.source.cursor(step)

    def resume(self, cursor: Mapping[str, Any]) -> None:
        self.source.resume(cursor)

    def state(self) -> dict[str, Tensor]:
        return self.objective.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.objective.load(state)
