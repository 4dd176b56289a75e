"""The progress records of a step: JSON lines to the file named by SLIPWAY_RECORDS.

In: keyword fields. Out: one line per record. Read by the agent (for progress.json and to notice a
silent step) and by the terminal when a command runs a step directly. Without the variable,
records go nowhere; diagnostics go to stderr through `logging` as usual.

Kinds: `progress` (done, total, unit, and any of loss, tokens_per_s, eta_s, ...), `note` (text), `result`
(the summary of the step, once, at its end).
"""

import json
import os
import time
from typing import Any


def emit(kind: str, **values: Any) -> None:
    """Append one record; a reader never sees half a line longer than it is being written."""
    path = os.environ.get("SLIPWAY_RECORDS")
    if not path:
        return
    line = json.dumps({"kind": kind, "at": time.time(), **values}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
