"""Signals that ask the trainer to stop: the step under way ends first; after the last step, the publication.

loading: `raise_on_sigterm` -> steps: `defer_stop_signals` -> evaluation and publication: `finish_after_sigterm`
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from data.events import emit
from trainer.errors import Preempted


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


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raise Preempted on SIGTERM inside the block.

    The training loop installs a handler that saves first; outside the loop no state needs saving.
    """

    def leave(number: int, frame: object) -> None:
        raise Preempted("the trainer stopped outside of the training loop. To resume, start the run again")

    with _handle_sigterm(leave):
        yield


@contextmanager
def finish_after_sigterm() -> Iterator[None]:
    """Continue after SIGTERM inside the block; the agent kills the trainer at the end of the grace.

    Raise Preempted if the parent process has exited, because no process would end the trainer later.
    """
    parent = os.getppid()

    def stay(number: int, frame: object) -> None:
        if os.getppid() != parent:
            raise Preempted("the trainer stopped before the publication. To resume, start the run again")
        with suppress(OSError):  # a full disk must not end the publication
            emit("note", text="asked to stop: the trainer evaluates and publishes the trained model first")

    with _handle_sigterm(stay):
        yield


@contextmanager
def _handle_sigterm(handler: Callable[[int, object], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
