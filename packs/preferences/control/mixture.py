"""The mixture of pairs that the flag --pairs names."""

from dataclasses import replace
from typing import Any

from data.references import WEIGHTED, parse_mixture
from trainer.config import PhaseConfig
from trainer.records.phase_registry import KINDS


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
