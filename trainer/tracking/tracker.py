"""The protocol of a tracker, and the record of how much of a run it was told.

A tracker is a sidecar: a process of its own, in an environment of its own, that reads the files which a training
writes. It may die, hang or never start; the training does not know of it. It is begun again by the pod's agent and
goes on after the last step that was told, on another pod too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

WHEN = ("step", "at")
Line = Mapping[str, Any]
"""One line of `metrics.jsonl` or of `samples.jsonl`; each has a `step`."""


@dataclass(frozen=True)
class TrackedRun:
    """The run whose figures are told."""

    run: str
    """Id of the run, stable over every recovery."""
    folder: Path
    """Folder on the pod in which a tracker may keep files."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Configuration of each phase."""


@dataclass
class Told:
    """The last step that was told, by phase: of figures, and of samples."""

    figures: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)


class Tracker(Protocol):
    """A receiver of figures. Any exception of it ends the sidecar, which is started again a while later."""

    link: str
    """Address at which people find the run."""
    told: Told | None
    """The tracker's own record of what it was told, by this process or an earlier one; None where it cannot know."""

    def figures(self, phase: str, lines: Sequence[Line]) -> None:
        """Tell the figures of some steps of a phase, in order, each step once."""

    def samples(self, phase: str, said: Sequence[Line]) -> None:
        """Tell what the model said after one step: lines with `prompt` and `text`."""

    def close(self) -> None:
        """Bring what was told to where it is kept, and end."""


def numbers(line: Line) -> dict[str, float]:
    """Return the figures of a line, without its step and its time."""
    return {key: float(value) for key, value in line.items() if key not in WHEN and type(value) in (int, float)}


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested configuration with one name for each value: `optimizer.lr`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            found |= flat(value, name)
        elif value is not None:
            found[name] = value
    return found
