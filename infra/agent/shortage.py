"""Retries after a shortage of memory, processes, file descriptors or disk space.

A shortage usually ends with the step that caused the shortage, because the kernel kills the step first. Until then,
calls of the guard and the agent may fail too. Neither process may end for that reason, or treat an unreadable file as a
missing file.
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
MOST_DOUBLINGS = 30  # beyond this count every wait is at its maximum, and a float would overflow
SCORE = Path("/proc/self/oom_score_adj")
# as if the step used half of all memory more than its real usage, so that the kernel kills the step first
STEP_SCORE = 500

Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with jitter, so that clients do not retry in step after a common failure.

    Everything in the agent uses this class; other code uses `store.backoff`, which the agent must not import.
    """

    first_s: float
    longest_s: float
    certain: float = 0.5  # share of a wait without jitter: 0 is full jitter, 1 is no jitter

    def wait_s(self, failures: int) -> float:
        """Return the seconds to wait after `failures` consecutive failures (at least 1)."""
        whole_s = min(self.longest_s, self.first_s * 2 ** min(failures - 1, MOST_DOUBLINGS))
        return random.uniform(self.certain * whole_s, whole_s)


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno in SHORT


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


def retry_shortages(call: Call) -> Call:
    """Decorate a function to retry after shortages for up to `PATIENCE_S` seconds, then raise."""

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
def tolerate_shortage(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Suppress and log a shortage in the body of the `with` statement; raise all other errors."""
    try:
        yield
    except (OSError, MemoryError) as error:
        if not is_shortage(error):
            raise
        say(f"{what} failed for now: {error!r}")


def exempt_from_oom_killer() -> None:
    """Exempt this process from the OOM killer, where permitted (root on Linux).

    If no other process can be killed, the kernel fails calls until memory is available again.
    """
    with contextlib.suppress(OSError):  # only root may lower the score
        SCORE.write_text("-1000")


def prefer_for_oom_kill(words: List[str]) -> List[str]:
    """Return the command wrapped so that the OOM killer selects the process and the children first."""
    return ["/bin/sh", "-c", 'echo {} 2>/dev/null >{}; exec "$@"'.format(STEP_SCORE, SCORE), "sh", *words]
