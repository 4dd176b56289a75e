"""The phase dpo: train a chat model to prefer the better answer of each pair."""

from collections.abc import Mapping
from typing import Any

from data.config import StepContext
from packs.preferences.records.dpo_config import DpoConfig
from packs.preferences.trainer.objective import PreferenceLoss
from packs.preferences.trainer.pairs import Pairs
from packs.preferences.trainer.source import PairBatches
from trainer.config import CheckpointOptions
from trainer.errors import Refused
from trainer.parallel.process_group import Ranks
from trainer.phases.conversations import conversations_of, report_counts
from trainer.run import PhaseRun, phase_run

REFERENCE = "reference.safetensors"


def run(config: DpoConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train from the model of the preceding phase and publish; return the result record of the first process."""
    with phase_run(config, making, keeping, ranks) as phase:
        pairs = open_pairs(phase, config, config.mixture or {})
        source = PairBatches(config_of(phase), pairs, ranks, phase.checkpoints.folder / REFERENCE)
        trained = phase.train(phase.initial_model(), source, PreferenceLoss(config))
        return phase.publish(*trained, {"pairs": len(pairs.pairs), "preference": config.loss}) if trained else {}


def config_of(phase: PhaseRun) -> DpoConfig:
    """Return the configuration with the micro-batch that fits this machine."""
    assert isinstance(phase.config, DpoConfig), "phase_run keeps the class"
    return phase.config


def open_pairs(phase: PhaseRun, config: DpoConfig, mixture: Mapping[str, float]) -> Pairs:
    """Return the pairs of the mixture and report the counts. Raises Refused for an empty mixture, InputError."""
    if not mixture:
        raise Refused(f"{config.phase}: the mixture is empty; --pairs names files of pairs")
    files = {kind: conversations_of(phase, kind) for kind in mixture}
    is_single = config.loss == "kto"
    found = Pairs(files, mixture, phase.tokenizer, config.sequence_len, config.seed, config.rows, is_single)
    if phase.ranks.is_first:
        report_counts(config.phase, found.counts)
    return found
