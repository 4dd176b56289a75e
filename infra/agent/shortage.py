"""Retries after a shortage of resources.

Memory, processes, descriptors or disk may run out. Such shortages mostly pass with the step that has caused them, which
the kernel takes first. Until then a call of our own may fail too: neither guard nor agent may end for that, nor take
what could not be read for what is not there.
"""

import contextlib
import errno
import functools
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, List, TypeVar, cast

SHORT = {errno.ENOMEM, errno.EAGAIN, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS}
FULL = {errno.ENOSPC, errno.EDQUOT}
PATIENCE_S = 10.0
POLL_S = 0.05
MOST_DOUBLINGS = 30  # beyond it every longest wait is reached, and a float would overflow at last
SCORE = Path("/proc/self/oom_score_adj")
STEP_SCORE = 500  # as if a step held half of all memory more than it does, so that the kernel kills it first

Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Backoff:
    """Waits that double up to a longest one, with jitter so that many who failed together do not come back together.

    The agent's one rule for it; that of everything else is `store.backoff`, which nothing here may import.
    """

    first_s: float
    longest_s: float
    certain: float = 0.5  # the share of a wait that chance does not touch: 0 is full jitter, 1 is none

    def wait_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row, which are at least 1."""
        whole_s = min(self.longest_s, self.first_s * 2 ** min(failures - 1, MOST_DOUBLINGS))
        return random.uniform(self.certain * whole_s, whole_s)


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno in SHORT


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


def patient(call: Call) -> Call:
    """Retry the call while it fails for a shortage, for up to `PATIENCE_S`; then let it raise."""

    @functools.wraps(call)
    def again(*args: Any, **more: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call(*args, **more)
            except (OSError, MemoryError) as error:
                if not is_shortage(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_S)

    return cast(Call, again)


@contextlib.contextmanager
def outlasting(say: Callable[[str], None], what: str) -> Iterator[None]:
    """End the body only when a shortage occurs, and log it; anything else is raised."""
    try:
        yield
    except (OSError, MemoryError) as error:
        if not is_shortage(error):
            raise
        say(f"{what} failed for now: {error!r}")


def spare_me() -> None:
    """Ask the kernel to take anything but this process when memory runs out, where we may (root on Linux).

    With nothing else to take it lets calls fail instead, until there is memory again.
    """
    with contextlib.suppress(OSError):  # only root may lower it
        SCORE.write_text("-1000")


def offered_first(words: List[str]) -> List[str]:
    """Return the same command, whose process and children the kernel takes first when memory runs out."""
    return ["/bin/sh", "-c", 'echo {} 2>/dev/null >{}; exec "$@"'.format(STEP_SCORE, SCORE), "sh", *words]
