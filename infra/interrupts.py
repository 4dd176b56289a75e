"""Exit signals of a command, and blocks protected from interruption.

SIGINT, SIGTERM and SIGHUP become exceptions in the main thread. `raise_on_signals` wraps every command.
`defer_interrupts` wraps renting and ending pods, since no signal may interrupt between a paid request and the record in
the journal. `WorkTakenOver` is also a request to exit; its source is the journal.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object]

LEAVE = (signal.SIGTERM, signal.SIGHUP)
NUMBERS = (signal.SIGINT, *LEAVE)
MEANWHILE = "finishing: {what}. Press Ctrl-C again to quit now; a pod may keep billing"


class ExitRequested(BaseException):
    """The process was asked to exit by signal `number`, sent by a process or by a closing terminal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"asked to exit ({signal.Signals(number).name})")

    @property
    def exit_code(self) -> int:
        return 128 + self.number


def exit_reason(error: BaseException) -> str:
    """Return why a command was asked to exit, as text; "" for any other error."""
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if isinstance(error, ExitRequested):
        closed = error.number == signal.SIGHUP
        return "the terminal was closed" if closed else f"inv received {signal.Signals(error.number).name}"
    return ""


class WorkTakenOver(BaseException):
    """A second process took over the work of this process after a long silence; this process must stop.

    Error handlers must not catch the exception and retry.
    """


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise ExitRequested, as SIGINT raises KeyboardInterrupt; ignored signals stay ignored."""

    def leave(number: int, _: FrameType | None) -> None:
        raise ExitRequested(number)

    with _handling(dict.fromkeys(LEAVE, leave), lambda now: now == signal.SIG_DFL):
        yield


@contextlib.contextmanager
def defer_interrupts(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Delay the first signal's exception to the end of the block; raise a second signal's exception at once."""
    noted: list[int] = []
    before: dict[int, Handler] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            before[number](number, frame)
        else:
            # The output may have no reader, or the signal arrived during a print.
            with contextlib.suppress(OSError, RuntimeError, ExitRequested):
                say(MEANWHILE.format(what=what))

    with _handling(dict.fromkeys(NUMBERS, note), callable) as replaced:
        before.update(replaced)
        try:
            yield
        except (KeyboardInterrupt, ExitRequested):
            raise
        except BaseException:
            if noted:
                before[noted[0]](noted[0], None)
            raise
        if noted:  # also after a second signal: Python drops exceptions in some places, such as callbacks
            before[noted[0]](noted[0], None)


@contextlib.contextmanager
def _handling(handlers: Mapping[int, Handler], which: Callable[[object], bool]) -> Iterator[dict[int, Any]]:
    """Install handlers for all signals with a current handler accepted by `which`; yield the replaced handlers.

    Signals reach the main thread only; in other threads the function has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    now = {number: signal.getsignal(number) for number in handlers}
    replaced = {number: one for number, one in now.items() if which(one)}
    try:
        for number in replaced:
            signal.signal(number, handlers[number])
        yield replaced
    finally:
        for number, one in replaced.items():
            signal.signal(number, one)
