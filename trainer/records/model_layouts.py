"""Dialects of `config.json` known to packs, in addition to transformers' Llama, Qwen2 and Qwen3. No torch here.

config.json  ->  words(raw)  ->  the pack's function: the same config in the project's spelling
"""

from collections.abc import Mapping
from typing import Any

from data.config import ConfigError
from store import packs

KIND = "model_layouts"


def words(raw: Mapping[str, Any]) -> list[str]:
    """Return the words by which a pack may recognise a config.json: architecture classes and quantization method."""
    said, classes = raw.get("quantization_config"), raw.get("architectures")
    found = [said.get("quant_method")] if isinstance(said, Mapping) else []
    return [one for one in [*(classes if isinstance(classes, list) else []), *found] if isinstance(one, str)]


def spelt(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json in the project's spelling, unchanged if no pack knows the dialect.

    Raises ConfigError if a pack knows but cannot read the config, or with the name of a missing pack.
    """
    known = packs.entries(KIND)
    for word in words(raw):
        if said := packs.lacking(KIND, word):
            raise ConfigError(said)
        if word in known:
            found: Mapping[str, Any] = packs.load(known[word])(raw)
            return found
    return raw
