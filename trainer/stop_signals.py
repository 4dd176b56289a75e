"""Signals that ask the trainer to stop: the step under way ends first."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def defer_stop_signals() -> Iterator[Callable[[], bool]]:
    """Defer SIGTERM and SIGINT inside the block; yield a function returning whether a signal has arrived."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
