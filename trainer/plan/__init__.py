"""Planner: turns the words of a command into a plan of the artifacts to build, the steps and the time needed.

    words -> wanted -> nodes -> compare (with estimates) -> Plan

The planner takes the user's request, a profile and an `Inventory` of the store, and returns a `Plan` with the `Job` for
the missing part. The comparison works like Make, with fingerprints instead of modification times. The planner never
accesses the store and does not import torch.
"""

from trainer.plan.compare import resolve
from trainer.plan.nodes import recipe, source_slug
from trainer.plan.training_request import (
    IMPORTED,
    ROWS,
    TrainingRequest,
    imported_name,
    load_persona,
    origin_of,
    parse_mixture,
    parse_phases,
    profile_named,
    tagged,
)

__all__ = [
    "IMPORTED",
    "ROWS",
    "TrainingRequest",
    "imported_name",
    "load_persona",
    "origin_of",
    "parse_mixture",
    "parse_phases",
    "profile_named",
    "recipe",
    "resolve",
    "source_slug",
    "tagged",
]
