"""Tasks that resume within the call that wakes them.

An asyncio.Task resumes through a future and a further turn of the event loop. For a short request, which waits only for
an engine, that turn was a tenth of the cost (bench/RESULTS.md). Coroutines wait for Signals, and for asyncio futures on
rare paths.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Signal:
    """Wake-up of the single waiting task.

    A signal carries no value: the woken task checks the awaited condition again.
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
            task._resume()


class EagerTask:
    """Task with the method names of asyncio.Task. The loop's exception handler receives uncaught errors."""

    __slots__ = ("_coroutine", "_waits_for", "_is_cancelled", "_cancels", "is_done")

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        """Run the coroutine up to the first wait."""
        self._coroutine = coroutine
        self._waits_for: Signal | asyncio.Future[Any] | None = None  # None while running
        self._is_cancelled = self.is_done = False
        self._cancels = 0
        self._resume()

    def cancel(self) -> None:
        """Raise CancelledError at the wait: within this call for a signal, else in the loop's next turn."""
        if self.is_done:
            return
        self._cancels += 1
        waits_for = self._waits_for
        if isinstance(waits_for, Signal):
            waits_for._task = None
            self._is_cancelled = True
            self._resume()
        elif waits_for is None or not waits_for.cancel():
            self._is_cancelled = True

    def uncancel(self) -> int:
        """Mark one cancellation as handled, and return the number of the others."""
        self._cancels -= 1
        return self._cancels

    def _resume(self, _: object = None) -> None:
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
            said = {"message": "a task of the gateway ended with an error", "exception": error}
            asyncio.get_running_loop().call_exception_handler(said)
            return
        self._waits_for = waits_for
        if waits_for.__class__ is Signal:
            waits_for._task = self
        else:
            waits_for._asyncio_future_blocking = False  # marks the future as awaited, not merely yielded
            waits_for.add_done_callback(self._resume)
        if self._is_cancelled:  # cancelled while running
            self._is_cancelled = False
            self._cancels -= 1
            self.cancel()
