"""Protocol of a tracker, and the record of the steps already sent.

A tracker runs in a sidecar: a separate process in a separate environment, reading the files of a training. The sidecar
may crash, hang or never start without any effect on the training. The pod's agent restarts the sidecar, which resumes
after the last step sent, also on a different pod.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

WHEN = ("step", "at")
Line = Mapping[str, Any]
"""A line of `metrics.jsonl` or of `samples.jsonl`; each line has a `step`."""


@dataclass(frozen=True)
class TrackedRun:
    """Run under observation by a tracker."""

    run: str
    """Id of the run, unchanged by recoveries."""
    folder: Path
    """Folder on the pod for the tracker's own files."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Configuration of each phase."""


@dataclass
class LastSent:
    """Last step sent, by phase: for figures, and for samples."""

    figures: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)


class Tracker(Protocol):
    """Receiver of metrics. An exception ends the sidecar; the agent restarts the sidecar later.

    Optional: `problem()`, for a tracker whose `send_metrics` only queues: why the metrics do not arrive, "" if they do.
    """

    link: str
    """Address of the run for people."""
    last_sent: LastSent | None
    """The tracker's own record of the steps received from this or an earlier process; None = no record."""

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        """Send the figures of some steps of a phase, in order, each step once."""

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        """Send the model's samples after a step: lines with `prompt` and `text`."""

    def close(self) -> None:
        """Flush the received records to permanent storage, and close."""


def numbers(line: Line) -> dict[str, float]:
    """Return the numeric figures of a line, without step and time."""
    return {key: float(value) for key, value in line.items() if key not in WHEN and type(value) in (int, float)}


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested configuration with dotted names, e.g. `optimizer.lr`, without None values."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            found |= flat(value, name)
        elif value is not None:
            found[name] = value
    return found
