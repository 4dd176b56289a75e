"""The end of a schedule: a fixed number of steps, or a number that a pack changes while the run trains.

A changed number of steps changes the learning rates of the following steps only: from then on, the rates are those of a
run planned for this number. The checkpoint keeps the number, so that a resumed run continues the same schedule.
"""

from store import packs
from trainer.config import PhaseConfig


class ScheduleEnd:
    """A fixed end; the base class of ends from packs."""

    def __init__(self, config: PhaseConfig) -> None:
        """Begin to watch a training process, on the first process of a run."""
        self.config = config

    def num_steps(self, step: int, steps: int) -> int:
        """Return the number of steps of the run, called after `step` steps with the current number."""
        return steps


def end_of(config: PhaseConfig) -> ScheduleEnd:
    """Return the end of the schedule of a phase."""
    word = config.schedule.end
    kind: type[ScheduleEnd] = packs.load(packs.entries("schedule_ends")[word]) if word else ScheduleEnd
    return kind(config)
