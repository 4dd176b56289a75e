"""A command that a laptop runs on this control host, as a child of this process.

In: the laptop's record of the command (`HostPlaces.calls`), and the streams that sshd gave to this process: a terminal,
or three pipes. The command inherits these streams, so sshd carries keys, sizes and bytes. Out: beside the record, how
the command ended, with a copy of the journal where the journal has changed.

When sshd closes the streams, the laptop has left: the command gets SIGHUP, as from a terminal that is closed, and is
waited for. A launch then leaves a keeper behind; no run is ended.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.agent.job import write_durably

LOOK_S = 0.25
KEPT_S = 86_400.0  # how long a record stays that no laptop has fetched
KEYS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)  # they are for the command


def run(
    record: Path,
    line_of: Callable[[dict[str, Any]], tuple[list[str], str, dict[str, str]]],
    copy_of: Callable[[], tuple[str, str]],
    look_after: Callable[[], None],
) -> int:
    """Return the exit code of the command.

    `line_of` makes words, folder and variables of the record; `copy_of` the archive of the journal and its digest;
    `look_after` starts what must go on once a command has ended whose laptop has left.
    """
    about = json.loads(record.read_bytes())
    record.unlink()
    _forget_old(record.parent)
    for number in KEYS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, the command does not inherit a function
    if os.isatty(0):
        _without_stop_key()
    words, folder, environ = line_of(about)
    try:
        child = subprocess.Popen(words, cwd=folder, env=environ)
    except OSError as error:
        print(f"inv: on the control host the command cannot be run: {error}", file=sys.stderr)
        return 1
    has_left = _follow(child)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if has_left:
        look_after()
        return code
    archive = digest = problem = ""
    try:
        archive, digest = copy_of()
    except Exception as error:  # the command has ended well, and its exit code must arrive
        problem = f"{type(error).__name__}: {error}"
    said = {"code": code, "digest": digest, "problem": problem, "archive": archive if digest != about["holds"] else ""}
    write_durably(record.with_suffix(".over"), json.dumps(said))
    return code


def _follow(child: "subprocess.Popen[bytes]") -> bool:
    """Wait for the command; return whether the laptop has left before its end."""
    outputs = select.poll()
    for number in (1, 2):
        outputs.register(number, 0)  # an error is always reported
    has_left = False
    while True:
        try:
            child.wait(LOOK_S)
            return has_left
        except subprocess.TimeoutExpired:
            # A reader that leaves closes one of two streams, and the command notices that by itself.
            if not has_left and len(outputs.poll(0)) == 2:
                has_left = True
                os.killpg(0, signal.SIGHUP)


def _forget_old(folder: Path) -> None:
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another command has removed it
            if one.stat().st_mtime < time.time() - KEPT_S:
                one.unlink()


def _without_stop_key() -> None:
    """Leave out the key that stops a program: no shell over there could wake the program up again."""
    found = termios.tcgetattr(0)
    found[6][termios.VSUSP] = os.fpathconf(0, "PC_VDISABLE").to_bytes(1, sys.byteorder)
    termios.tcsetattr(0, termios.TCSANOW, found)
