"""The upgrade from processes of older code to ours: they are asked to leave, and what they looked after is named.

In: the file of a journal, which may have the layout of an older Slipway. Out: the leases that are free now. A keeper or
a controller that leaves ends nothing: pods and engines go on, held by their guards, until somebody takes over.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from infra import journal_file, own_code
from infra.agent.process import is_alive, myself, send
from infra.errors import SlipwayError
from infra.journal_file import Holder
from infra.units import duration

LEAVE_S = 60.0  # a controller lets requests under way end first
POLL_S = 0.1


def older(state_file: Path) -> list[Holder]:
    """Return the living processes of other code than ours that hold leases. Raise JournalError."""
    found = journal_file.holders_in(state_file)
    return [one for one in found if one.code != own_code.stamp() and one.process != myself()]


def hand_over(
    state_file: Path, tell: Callable[[str], None], patience_s: float = LEAVE_S, is_for_all: bool = False
) -> list[str]:
    """Ask every process of other code to leave, and return the leases that they held once they are gone.

    `is_for_all`: also those of this code. Raise SlipwayError when one of them stays. The same again goes on from there.
    """
    found = journal_file.holders_in(state_file) if is_for_all else older(state_file)
    leaving = [one for one in found if one.process != myself()]
    for process in dict.fromkeys(one.process for one in leaving):
        held = ", ".join(one.lease for one in leaving if one.process == process)
        why = "looks after it from here" if is_for_all else "runs older code"
        tell(f"process {process.pid} ({held}) {why}; it is asked to leave")
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while staying := [one for one in leaving if is_alive(one.process)]:
        if time.monotonic() > deadline:
            who = ", ".join(f"{one.process.pid} ({one.lease})" for one in staying)
            raise SlipwayError(
                f"still running after {duration(patience_s)}: process {who}; what they look after goes on; end them "
                f"(kill {' '.join(str(one.process.pid) for one in staying)}), then run the same again"
            )
        time.sleep(POLL_S)
    return [one.lease for one in leaving]
