"""Spellings of a `config.json` that packs know, beside those of transformers' Llama, Qwen2 and Qwen3. No torch here.

config.json  ->  words(raw)  ->  the pack's function: the same in our own spelling
"""

from collections.abc import Mapping
from typing import Any

from data.config import ConfigError
from store import packs

KIND = "model_layouts"


def words(raw: Mapping[str, Any]) -> list[str]:
    """Return the words of a config.json by which a pack may know it: its classes, and how its numbers are stored."""
    said, classes = raw.get("quantization_config"), raw.get("architectures")
    found = [said.get("quant_method")] if isinstance(said, Mapping) else []
    return [one for one in [*(classes if isinstance(classes, list) else []), *found] if isinstance(one, str)]


def spelt(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json in our spelling, any that no pack knows as it is.

    Raises ConfigError for one that a pack knows and cannot read, and with the name of a pack that is not there.
    """
    known = packs.entries(KIND)
    for word in words(raw):
        if said := packs.lacking(KIND, word):
            raise ConfigError(said)
        if word in known:
            found: Mapping[str, Any] = packs.load(known[word])(raw)
            return found
    return raw
