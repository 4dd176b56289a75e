"""The records shared by plan and trainer: the shape of the work, and facts about kept kernels."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from store import untrusted_input
from trainer.config import PhaseConfig
from trainer.records.fields import fingerprint_fields

# Settings without influence on the kernels of the blocks.
WITHOUT_KERNELS = {
    *("optimizer", "schedule", "steps", "rows", "seed", "packing", "adopted", "fit", "compile", "mixture", "rl"),
    *("turns", "extension"),
}


@dataclass(frozen=True, kw_only=True)
class KeptKernels:
    """Facts about kept kernels for a plan. The store is not trusted, and the facts decide nothing."""

    shape: str
    machine: str
    compile_s: float
    num_bytes: int


def shape_of(config: PhaseConfig) -> str:
    """Return a digest of the settings of a phase that determine the kernels, rounding included."""
    found = {
        one.name: fingerprint_fields(getattr(config, one.name))
        for one in fields(config)
        if one.name not in WITHOUT_KERNELS and (one.name == "phase" or getattr(config, one.name) != one.default)
    }
    text = json.dumps(found, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_about(about: Mapping[str, Any], num_bytes: int) -> KeptKernels:
    """Return the facts in the manifest of an artifact; unusable facts become ""."""
    shape, machine, took = (about.get(name) for name in ("shape", "machine", "compile_s"))
    return KeptKernels(
        shape=shape if isinstance(shape, str) else "",
        machine=untrusted_input.printable(machine)[:80] if isinstance(machine, str) else "",
        compile_s=float(took) if isinstance(took, (int, float)) and math.isfinite(took) and took > 0 else 0.0,
        num_bytes=num_bytes,
    )
