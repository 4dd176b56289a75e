"""Kinds of models that not every engine computes with, by words of their config.json.

In: a model folder. Out: its `ModelKind`; None = any engine does. A pack declares kinds under `served_models`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from store import packs
from store.artifacts import model_files

KIND = "served_models"


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """A kind of models, and the engines that compute with it."""

    about: str
    """Phrase behind the name of a model, for an engine that cannot."""
    engines: tuple[str, ...]
    """The engines that can, the usual one first."""


def kind_of(source: str) -> ModelKind | None:
    """Return the kind of the model in a folder; None for any other, and where it lies elsewhere.

    Raises UsageError for one whose pack is not there.
    """
    try:
        config = {} if "://" in source else model_files.load(Path(source))
    except (OSError, ValueError):
        return None  # its reader reports what is wrong with it
    known = packs.entries(KIND)
    for word in _words(config):
        if said := packs.lacking(KIND, word):
            raise UsageError(f"{source}: {said}")
        if word in known:
            found: ModelKind = packs.load(known[word])
            return found
    return None


def _words(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words that may name a kind: `model_type=...`, `quant_method=...`, keys that are set."""
    said = config.get("quantization_config")
    yield f"model_type={config.get('model_type')}"
    yield f"quant_method={said.get('quant_method') if isinstance(said, Mapping) else ''}"
    yield from (str(name) for name, value in config.items() if value)
