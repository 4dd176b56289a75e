"""The dead-man timer started with a rented container, as read and moved by the guard.

    timer files in HOME (written by infra.machines.dead_man) -> new deadline file, timer state for the guard's report

Without these files, `update_deadline` does nothing and `read_timer` returns {}.
"""

import math
import os
import time
from pathlib import Path
from typing import Any, Dict

from infra.agent.job import write_durably
from infra.agent.process import identify

FOLDER = ".slipway-timer"  # in HOME: the folder of the timer
ENDS_AT = "ends-at"  # file with the deadline in UTC epoch seconds by the container's clock
LIMIT = "limit-s"  # file with the limit for this deadline, in whole seconds by the vendor's clock
ALIVE = "alive"  # file with the pid of the timer and the time of the timer's last check
MARGIN_S = 60.0  # on the vendor's clock, after the limit: the guard saves and deletes the pod earlier


def update_deadline(limit_s: float, left_s: float, scale: float) -> None:
    """Move the deadline to `left_s` vendor seconds plus MARGIN_S from now, if the limit has changed.

    For an unchanged limit the deadline stays: the guard counts from the hand-over, so a slow hand-over would move the
    deadline beyond the limit.
    """
    said = format_limit(limit_s)
    if _folder().is_dir() and _text(LIMIT) != said:
        write_durably(_folder() / ENDS_AT, str(int(time.time() + (left_s + MARGIN_S) / scale)))
        write_durably(_folder() / LIMIT, said)


def format_limit(limit_s: float) -> str:
    """Return a limit in the format of the timer's file."""
    return str(math.ceil(limit_s))


def read_timer() -> Dict[str, Any]:
    """Return the deadline and the age in seconds of the timer's last check, or {} without a live timer."""
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
