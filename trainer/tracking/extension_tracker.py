"""Tracker from the user's Python file: `tracker(run, folder, configs)` returns an object that receives the metrics.

The object needs `tell(phase, figures)`. Optional: `samples(phase, said)`, `close()`, a text `link`, and `told`, the
last step sent by phase. The file is uploaded with the job and runs in the environment of the training.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from store.extensions import of_text
from store.extensions.run import function
from trainer.tracking.tracker import LastSent, Line, TrackedRun


class ExtensionTracker:
    def __init__(self, run: TrackedRun, code: str, name: str) -> None:
        self.theirs: Any = function(of_text(code, name), "tracker")(run.run, run.folder, run.configs)
        self.link = str(getattr(self.theirs, "link", name))
        told: Mapping[str, int] | None = getattr(self.theirs, "told", None)
        self.last_sent = None if told is None else LastSent(dict(told), dict(told))

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        for line in lines:
            self.theirs.tell(phase, dict(line))

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        if hasattr(self.theirs, "samples"):
            self.theirs.samples(phase, [dict(one) for one in said])

    def close(self) -> None:
        if hasattr(self.theirs, "close"):
            self.theirs.close()
