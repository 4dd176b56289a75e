"""Artifacts of a step: made only if the store has no whole copy, and named.

`StepContext` and a function that makes the artifact -> `make_if_missing` -> facts about the artifact, and an event
"""

from collections.abc import Callable
from typing import Any

from data.config import StepContext
from data.events import emit
from store.artifacts.artifacts import Store
from store.manifest import stage_name
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.parallel.process_group import Ranks
from trainer.records.phase_registry import PHASES


def make_if_missing(
    making: StepContext, ranks: Ranks, make: Callable[[], dict[str, Any]], second_name: str = ""
) -> dict[str, Any]:
    """Return the facts about the artifact, calling `make` only when the store has no whole copy.

    Point the artifact's name and `second_name` (if given) at the fingerprint, because a previous process may have been
    killed between publishing and naming.
    """
    store = Store(making.store)
    found = store.find(making.name, making.fingerprint)
    is_due = ranks.broadcast(bool(found.problem))
    if ranks.is_first and not is_due:  # a kill may have come before the name was set
        store.point_name(making.name, making.fingerprint)
    about = make() if is_due else {name: one for name, one in found.about.items() if name not in making.provenance}
    if ranks.is_first and second_name:
        store.point_name(second_name, making.fingerprint)
    emit("result", name=making.name, fingerprint=making.fingerprint, **about)
    return about


def place_of_stage(making: StepContext, config: PhaseConfig, keeping: CheckpointOptions) -> str:
    """Return the second store name of a phase with an alias, as recipes refer to the stage, or "" for other phases."""
    phase, (folder, _, model) = PHASES[config.phase], making.name.partition("/")
    is_stage = phase.alias and model and folder == phase.folder
    return stage_name(keeping.prefix or "checkpoint", model, phase.alias) if is_stage else ""
