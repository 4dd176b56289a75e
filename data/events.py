"""Progress records of a step: JSON lines appended to the file named by SLIPWAY_RECORDS.

The agent reads the records for progress.json and to detect a silent step; the terminal reads them if a command runs a
step directly. Without the variable, records are discarded. Diagnostics go to stderr through `logging`.

Kinds: `progress` (done, total, unit, and any of loss, tokens_per_s, eta_s, ...), `note` (text), `result` (the summary
of the step, once, at its end).
"""

import json
import os
import time
from typing import Any


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
