"""The dead-man timer that a rented container was started with, as the guard sees and moves it.

In: the files of the timer in HOME, which the timer's script has made (infra.machines.dead_man). Out: its deadline as a
file, and a record of what is seen of it for the guard's report. On a machine without such files nothing is done.
"""

import math
import os
import time
from pathlib import Path
from typing import Any, Dict

from infra.agent.job import write_durably
from infra.agent.process import identify

FOLDER = ".slipway-timer"  # below HOME: the files of the timer
ENDS_AT = "ends-at"  # file: the deadline in UTC epoch seconds, by the container's clock
LIMIT = "limit-s"  # file: the limit that the deadline stands for, in whole seconds by the vendor's clock
ALIVE = "alive"  # file: process number of the timer, and the time of its last look
MARGIN_S = 60.0  # by the vendor's clock, after the limit: the guard saves and deletes the pod before


def follow(limit_s: float, left_s: float, scale: float) -> None:
    """Move the deadline to `left_s` seconds of the vendor's clock from now, and the margin, where the limit is another.

    For the limit that the deadline was fixed for, the deadline stays: the guard counts from the hand-over, and a slow
    hand-over would move the deadline beyond the limit.
    """
    said = whole(limit_s)
    if _folder().is_dir() and _text(LIMIT) != said:
        write_durably(_folder() / ENDS_AT, str(int(time.time() + (left_s + MARGIN_S) / scale)))
        write_durably(_folder() / LIMIT, said)


def whole(limit_s: float) -> str:
    """Return a limit as the file of the timer has it."""
    return str(math.ceil(limit_s))


def look() -> Dict[str, Any]:
    """Return the deadline and the age in seconds of the timer's last look; {} when no living timer is seen."""
    try:
        pid, at = _text(ALIVE).split()
        ends_at = int(_text(ENDS_AT))
        is_alive = identify(int(pid)) is not None
    except ValueError:
        return {}
    return {"ends_at": ends_at, "looked_s_ago": max(0.0, time.time() - int(at))} if is_alive else {}


def _text(name: str) -> str:
    try:
        return (_folder() / name).read_text().strip()
    except (OSError, ValueError):
        return ""


def _folder() -> Path:
    return Path(os.environ.get("HOME", "/root")) / FOLDER
