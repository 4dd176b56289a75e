"""Rotation of a pod's logs, so that a step with endless output cannot fill the disk.

A log of LOG_BYTES is copied to its earlier part, `STEP.1.log`, and truncated; a previous earlier part is deleted.
Processes keep appending to the same open file. Output between the last read and the truncation is lost, as in any
rotation by copy.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

from infra.agent.job import PodFolder, earlier_part, is_earlier_part, private
from infra.agent.shortage import is_full
from infra.agent.state import say

LOG_BYTES = 64 << 20
LINE_BYTES = 1 << 20
EARLIER_PODS = "earlier"  # in the state folder: logs of earlier pods of the run, which precede the logs of this pod
TRIES, TRY_S = 20, 0.005


def rotate(pod: PodFolder, log_bytes: int = LOG_BYTES) -> None:
    """Rotate each log of at least `log_bytes`; after a failed copy, report the error and leave the log unchanged."""
    for path in sorted(pod.logs.glob("*.log")):
        if not is_earlier_part(path) and path.stat().st_size >= log_bytes:
            try:
                _rotate(path, pod.state / EARLIER_PODS, log_bytes)
            except OSError as error:
                earlier_part(path).unlink(missing_ok=True)
                say(f"{path.name} cannot be rotated{' on a full disk' if is_full(error) else ''}: {error}")


def _rotate(path: Path, earlier_pods: Path, log_bytes: int) -> None:
    part, times = earlier_part(path), path.with_suffix(".times")
    for old in (part, part.with_suffix(".times"), earlier_pods / part.name):
        old.unlink(missing_ok=True)
    with open(path, "r+b") as log, open(part, "wb", opener=private) as kept:
        is_whole = _skip(log, log_bytes)
        for _ in range(TRIES):
            shutil.copyfileobj(log, kept)
            if _ends_with_line(log):
                break
            time.sleep(TRY_S)  # half of a secret at the end of a part would not be recognized and redacted
        log.truncate(0)
    with contextlib.suppress(FileNotFoundError):
        if is_whole:
            times.rename(part.with_suffix(".times"))
        else:  # the offsets do not match the part
            times.unlink()
    with contextlib.suppress(FileNotFoundError):
        (earlier_pods / path.name).rename(earlier_pods / part.name)


def _skip(log: BinaryIO, log_bytes: int) -> bool:
    """Skip the start of a log of at least `2 * log_bytes`, up to the first line within the last `log_bytes`.

    Returns whether the whole log is kept.
    """
    size = os.fstat(log.fileno()).st_size
    if size < 2 * log_bytes:
        return True
    log.seek(size - log_bytes)
    log.readline(LINE_BYTES)
    return False


def _ends_with_line(log: BinaryIO) -> bool:
    end = log.tell()
    if not end:
        return True
    log.seek(end - 1)
    return log.read(1) in (b"\n", b"\r")
