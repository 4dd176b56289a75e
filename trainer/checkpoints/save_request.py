"""The guard's request for a checkpoint: the trainer saves and continues, because most of a limit is used.

The guard writes a file once per limit; polling the request returns True once per write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "SLIPWAY_SAVE_REQUEST"  # path of the file, set by the agent of the pod


@dataclass
class SaveRequest:
    """Poll the modification time of the request file; calling returns True after each write."""

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
    """Return the request poll of this pod from VARIABLE in `environ`, or `never` outside a pod."""
    path = environ.get(VARIABLE)
    return SaveRequest(Path(path)) if path else never


def never() -> bool:
    return False
