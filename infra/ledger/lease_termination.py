"""The dismissal of lease holders: ask each process to exit, wait, and return the freed leases.

A dismissed keeper or controller ends no pod and no engine: guards keep pods and engines running until a new process
takes over.
"""

import signal
import time
from collections.abc import Callable, Iterable

from infra.agent.process import current_identity, is_alive, send
from infra.errors import SlipwayError
from infra.ledger.leases import Holder
from infra.units import duration

LEAVE_S = 60.0  # seconds; a controller first lets running requests finish
POLL_S = 0.1


def terminate_holders(
    holders: Iterable[Holder], why: str, tell: Callable[[str], None], patience_s: float = LEAVE_S
) -> list[str]:
    """Send SIGTERM to every holder except this process, and return the freed leases after all have exited.

    Raise SlipwayError when a process still runs after `patience_s` seconds. A repeated call resumes the dismissal.
    """
    leaving = [one for one in holders if one.process != current_identity()]
    for process in dict.fromkeys(one.process for one in leaving):
        held = ", ".join(one.lease for one in leaving if one.process == process)
        tell(f"process {process.pid} ({held}) {why}; asking the process to exit")
        send(process, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while staying := [one for one in leaving if is_alive(one.process)]:
        if time.monotonic() > deadline:
            who = ", ".join(f"{one.process.pid} ({one.lease})" for one in staying)
            raise SlipwayError(
                f"still running after {duration(patience_s)}: process {who}; their runs and services continue. "
                f"Run: kill {' '.join(str(one.process.pid) for one in staying)}, then run the same command again"
            )
        time.sleep(POLL_S)
    return [one.lease for one in leaving]
