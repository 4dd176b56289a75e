"""Tasks that continue within the call that brings what they wait for.

An asyncio.Task continues by way of a future and a turn of the event loop later; a short request waits for its engine
and for nothing else, and that was a tenth of what it cost (bench/RESULTS.md). In: a coroutine that waits for Signals,
and for asyncio's futures where something is rare.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Signal:
    """A wake-up of the one task that waits for it.

    It carries nothing: who is woken looks again for what it waited for.
    """

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: EagerTask | None = None

    def __await__(self) -> Generator[Any, None, None]:
        yield self

    def set(self) -> None:
        task = self._task
        if task is not None:
            self._task = None
            task._go_on()


class EagerTask:
    """A task with the names of asyncio.Task. A mistake that the coroutine does not catch is told to the loop."""

    __slots__ = ("_coroutine", "_waits_for", "_is_cancelled", "_cancels", "is_done")

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        """Run the coroutine up to where it first waits."""
        self._coroutine = coroutine
        self._waits_for: Signal | asyncio.Future[Any] | None = None  # None = it runs
        self._is_cancelled = self.is_done = False
        self._cancels = 0
        self._go_on()

    def cancel(self) -> None:
        """Raise CancelledError where it waits: within this call if for a signal, else in the loop's next turn."""
        if self.is_done:
            return
        self._cancels += 1
        waits_for = self._waits_for
        if isinstance(waits_for, Signal):
            waits_for._task = None
            self._is_cancelled = True
            self._go_on()
        elif waits_for is None or not waits_for.cancel():
            self._is_cancelled = True

    def uncancel(self) -> int:
        """Return how many cancellations are left when the caller has dealt with one."""
        self._cancels -= 1
        return self._cancels

    def _go_on(self, _: object = None) -> None:
        self._waits_for = None
        try:
            if self._is_cancelled:
                self._is_cancelled = False
                waits_for = self._coroutine.throw(asyncio.CancelledError())
            else:
                waits_for = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            self.is_done = True
            return
        except Exception as error:
            self.is_done = True
            said = {"message": "a task of the gateway ended by a mistake", "exception": error}
            asyncio.get_running_loop().call_exception_handler(said)
            return
        self._waits_for = waits_for
        if waits_for.__class__ is Signal:
            waits_for._task = self
        else:
            waits_for._asyncio_future_blocking = False  # marks it as awaited, and not merely yielded
            waits_for.add_done_callback(self._go_on)
        if self._is_cancelled:  # while it ran
            self._is_cancelled = False
            self._cancels -= 1
            self.cancel()
