"""Progress records of a step: JSON lines appended to the file named by SLIPWAY_RECORDS.

The agent reads the records for progress.json and to detect a silent step; the terminal reads them if a command runs a
step directly. Without the variable, records are discarded. Diagnostics go to stderr through `logging`.

Kinds: `progress` (done, total, unit, and any of loss, tokens_per_s, eta_s, ...), `note` (text), `result` (the summary
of the step, once, at its end), `part` (the kind of work that takes the time of the step: `enter_part`, `add_part`).
"""

import json
import os
import time
from typing import Any

SHORTEST_PART_S = 0.001


def emit(kind: str, **values: Any) -> None:
    """Append a record in a single write, so a reader sees a partial line only during the write."""
    path = os.environ.get("SLIPWAY_RECORDS")
    if not path:
        return
    line = json.dumps({"kind": kind, "at": time.time(), **values}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def boot_clock_s() -> float:
    """Return the seconds since the boot of this machine, like the agent: setting the time does not change them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def enter_part(part: str) -> None:
    """Record that the step does this kind of work from now on: data, steps, saves, evaluation or upload."""
    emit("part", part=part, clock_s=boot_clock_s())


def add_part(part: str, took_s: float) -> None:
    """Record that the last `took_s` seconds of the step went into this kind of work."""
    if took_s >= SHORTEST_PART_S:
        emit("part", part=part, took_s=round(took_s, 4), clock_s=boot_clock_s())
