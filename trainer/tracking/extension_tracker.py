"""Tracker from the user's Python file: `tracker(run, folder, configs)` returns an object that receives the metrics.

The object needs `tell(phase, figures)`. Optional: `samples(phase, said)`, `close()`, a text `link`, and `told`, the
last step sent by phase. The file is uploaded with the job and runs in the environment of the training.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from store.extensions import ExtensionError, of_text
from store.extensions.run import error_with_line, function
from trainer.tracking.tracker import LastSent, Line, TrackedRun


class ExtensionTracker:
    def __init__(self, run: TrackedRun, code: str, name: str) -> None:
        self.extension = of_text(code, name)
        self.theirs: Any = self._call(lambda: function(self.extension, "tracker")(run.run, run.folder, run.configs))
        if not callable(getattr(self.theirs, "tell", None)):
            raise ExtensionError(
                f"{self.extension.place('tracker')}: tracker returned {type(self.theirs).__name__}; expected an object "
                "with tell(phase, figures)"
            )
        self.link = str(getattr(self.theirs, "link", name))
        told: Mapping[str, int] | None = getattr(self.theirs, "told", None)
        self.last_sent = None if told is None else LastSent(dict(told), dict(told))

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        for line in lines:
            self._call(partial(self.theirs.tell, phase, dict(line)))

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        if hasattr(self.theirs, "samples"):
            self._call(partial(self.theirs.samples, phase, [dict(one) for one in said]))

    def close(self) -> None:
        if hasattr(self.theirs, "close"):
            self._call(self.theirs.close)

    def _call(self, call: Callable[[], Any]) -> Any:
        """Return the result of the user's code. Raise ExtensionError with the failing line."""
        try:
            return call()
        except (ExtensionError, KeyboardInterrupt):
            raise
        except BaseException as error:  # including SystemExit: the sidecar must report the error
            raise ExtensionError(error_with_line(self.extension, error)) from error
