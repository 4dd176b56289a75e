"""Model kinds that only some engines support, recognized by entries of config.json.

`kind_of` maps a model to a `ModelKind`, or to None if every engine supports the model. Packs declare kinds under
`served_models`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from serve.engine import models
from store import packs
from store.artifacts import model_files
from store.manifest import StoreError

KIND = "served_models"


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """Kind of models with the engines that support the kind."""

    about: str
    """Phrase after a model's name in the message about an unsupported engine."""
    engines: tuple[str, ...]
    """Supported engines, the default first."""


# The model_type in config.json of every shape without a class in transformers.
OWN_TYPE = "slipway"
OWN_SHAPE = ModelKind(about="has a shape of Slipway's own, which only --engine torch supports", engines=("torch",))


def kind_of(source: str) -> ModelKind | None:
    """Return the kind of the model in a folder or at an address, or None for other models and unreadable configs.

    Raises UsageError if the pack of the kind is missing.
    """
    try:
        config = models.remote_config(source)[0] if "://" in source else model_files.load(Path(source))
    except (OSError, ValueError, UsageError, StoreError):
        return None  # the model's reader reports the error
    known = packs.entries(KIND)
    for word in _words(config):
        if said := packs.missing_pack_message(KIND, word):
            raise UsageError(f"{source}: {said}")
        if word in known:
            found: ModelKind = packs.load(known[word])
            return found
    return OWN_SHAPE if config.get("model_type") == OWN_TYPE else None


def _words(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the entries that may name a kind: `model_type=...`, `quant_method=...`, and each key with a true value."""
    said = config.get("quantization_config")
    yield f"model_type={config.get('model_type')}"
    yield f"quant_method={said.get('quant_method') if isinstance(said, Mapping) else ''}"
    yield from (str(name) for name, value in config.items() if value)
