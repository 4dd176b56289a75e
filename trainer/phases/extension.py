"""A phase defined by an extension: the function `phase(run)` receives a `PhaseRun` and publishes the artifact."""

from typing import Any

from data.config import StepContext
from data.errors import DataError
from store import extensions
from store.extensions import ExtensionError
from store.extensions.run import error_with_line, function
from store.manifest import StoreError
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.errors import Refused, TrainerError
from trainer.parallel.process_group import Ranks
from trainer.run import phase_run


def run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Call the extension's `phase(run)`; return facts about the artifact, {} on other processes.

    Raises Refused for a missing extension or a phase returning without publishing, and TrainerError naming the line of
    the extension for an unexpected exception.
    """
    extension = extensions.used(config.phase)
    if extension is None or extension.label != config.extension:
        raise Refused(f"{config.phase}: the job does not contain the extension {config.extension}")
    try:
        theirs = function(extension, "phase")
    except ExtensionError as error:
        raise Refused(str(error)) from error
    with phase_run(config, making, keeping, ranks) as phase:
        try:
            about = theirs(phase)
        except (TrainerError, DataError, StoreError, KeyboardInterrupt):
            raise
        except BaseException as error:  # including SystemExit: a phase that exits early must not look complete
            raise TrainerError(error_with_line(extension, error)) from error
    if ranks.is_first and (not isinstance(about, dict) or "phase" not in about):
        raise Refused(
            f"{extension.place('phase')}: phase(run) did not return the result of run.publish; no model is published. "
            "End the function with: return run.publish(model, final, {})"
        )
    return about or {}
