"""Words -> Plan: what exists, what is missing, which steps make it, how long that takes.

    words -> wanted -> nodes -> compare (with estimates) -> Plan

In: what was asked for, a profile, and an `Inventory` of what the store holds. Out: a `Plan` with the `Job` that makes
the missing part. It works like Make, by fingerprints instead of times (`reuse.py`). Touches no store, imports no torch.
"""

from trainer.plan.compare import resolve
from trainer.plan.nodes import recipe
from trainer.plan.sources import source_slug
from trainer.plan.wanted import ROWS, Wanted, load_persona, parse_mixture, parse_phases, profile_named

__all__ = [
    "ROWS", "Wanted", "load_persona", "parse_mixture", "parse_phases", "profile_named", "recipe", "resolve",
    "source_slug",
]  # fmt: skip
