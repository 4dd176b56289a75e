"""The pairs and the teacher that flags name, in the configuration of a phase."""

from dataclasses import replace
from typing import Any

from data.references import WEIGHTED, parse_mixture
from packs.preferences.records.opd_config import OpdConfig
from trainer.config import PhaseConfig
from trainer.records.phase_registry import KINDS


def with_teacher(flags: Any, config: PhaseConfig) -> PhaseConfig:
    """Return the configuration of opd with the teacher. Raises ConfigError."""
    return replace(config, teacher=flags.model) if isinstance(config, OpdConfig) else config


def with_pairs(flags: Any, config: PhaseConfig) -> PhaseConfig:
    """Return the configuration of dpo with the sources of --pairs as mixture. Raises ConfigError."""
    if config.phase != "dpo":
        return config
    sources = weighted(flags.pairs)
    return replace(config, mixture={one if one in KINDS else f"pairs:{one}": weight for one, weight in sources})


def weighted(words: str) -> list[tuple[str, float]]:
    """Return the sources of `words` with weights; a single source needs no weight."""
    alone = WEIGHTED.fullmatch(words.strip())
    return parse_mixture(words) or [(alone["words"], float(alone["weight"])) if alone else (words.strip(), 1.0)]
