"""The signals that ask a command to leave, and what they must not interrupt in the middle.

In: SIGINT, SIGTERM, SIGHUP. Out: exceptions, in the main thread. `heed` stands around every command. `finishing`
stands around renting and ending: nothing may interrupt between a request that costs money and its record. `Replaced`
asks a process to leave as well, and comes from the journal.
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


class ToldToLeave(BaseException):
    """The process was asked to leave, by signal `number`: by another one, or by the end of its terminal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"told to leave ({signal.Signals(number).name})")

    @property
    def exit_code(self) -> int:
        return 128 + self.number


def why_left(error: BaseException) -> str:
    """Return why a command leaves that was asked to; "" for any other error."""
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if isinstance(error, ToldToLeave):
        closed = error.number == signal.SIGHUP
        return "its terminal was closed" if closed else f"it was told to end ({signal.Signals(error.number).name})"
    return ""


class Replaced(BaseException):
    """Another process has taken over what this one held, as this one was silent for long: it may do nothing more.

    No handler of errors may catch it, and try again.
    """


@contextlib.contextmanager
def heed() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise ToldToLeave, as SIGINT raises KeyboardInterrupt; an ignored one stays so."""

    def leave(number: int, _: FrameType | None) -> None:
        raise ToldToLeave(number)

    with _handling(dict.fromkeys(LEAVE, leave), lambda now: now == signal.SIG_DFL):
        yield


@contextlib.contextmanager
def finishing(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Delay the first signal to the end of this block, and raise it there; a second one is raised where it comes."""
    noted: list[int] = []
    before: dict[int, Handler] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            before[number](number, frame)
        else:
            # Nothing reads what is said, or the signal came during a print.
            with contextlib.suppress(OSError, RuntimeError, ToldToLeave):
                say(MEANWHILE.format(what=what))

    with _handling(dict.fromkeys(NUMBERS, note), callable) as replaced:
        before.update(replaced)
        try:
            yield
        except (KeyboardInterrupt, ToldToLeave):
            raise
        except BaseException:
            if noted:
                before[noted[0]](noted[0], None)
            raise
        if noted:  # also after a second one: what it raised is lost where Python ignores exceptions, as in callbacks
            before[noted[0]](noted[0], None)


@contextlib.contextmanager
def _handling(handlers: Mapping[int, Handler], which: Callable[[object], bool]) -> Iterator[dict[int, Any]]:
    """Install these signal handlers, where `which` is true of the present one; yield the replaced ones, by number.

    Signals reach the main thread only: in another one nothing changes.
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
