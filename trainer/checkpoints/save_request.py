"""The request of a pod's guard that a training saves now and goes on: most of a limit is used.

In: a file, which the guard writes once for each limit. Out: True, once for each time it is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "SLIPWAY_SAVE_REQUEST"  # path of the file; the agent of a pod sets it


@dataclass
class SaveRequest:
    """The file as it was seen last."""

    path: Path
    written_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.written_ns = self._now_ns()

    def __call__(self) -> bool:
        before, self.written_ns = self.written_ns, self._now_ns()
        return self.written_ns != before

    def _now_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0


def of(environ: Mapping[str, str]) -> Callable[[], bool]:
    """Return the request of the pod in which this process works; one that never comes outside of a pod."""
    path = environ.get(VARIABLE)
    return SaveRequest(Path(path)) if path else never


def never() -> bool:
    return False
