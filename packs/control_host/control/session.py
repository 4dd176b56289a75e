"""Execution of a laptop's command on this control host, as a child of this process.

The session reads the record of the laptop (`HostPaths.calls`) and inherits the streams of sshd: a terminal, or three
pipes. The command inherits the streams, so sshd carries keys, sizes and bytes. The outcome is written beside the
record, with a copy of the journal if the journal changed.

When sshd closes the streams, the laptop has left. The session then sends SIGHUP to the command, as a closed terminal
would, and waits for the end. A launch then leaves a keeper behind; no run ends.
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
KEPT_S = 86_400.0  # age at which an unfetched record is removed
KEYS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)  # signals meant for the command


def run(
    record: Path,
    line_of: Callable[[dict[str, Any]], tuple[list[str], str, dict[str, str]]],
    copy_of: Callable[[], tuple[str, str]],
    look_after: Callable[[], None],
) -> int:
    """Run the command of `record` and return its exit code.

    `line_of` returns words, folder and environment for the record; `copy_of` returns the archive of the journal and the
    digest; `look_after` restarts keepers and services if the laptop left before the end of the command.
    """
    about = json.loads(record.read_bytes())
    record.unlink()
    _forget_old(record.parent)
    for number in KEYS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, a function is not inherited
    if os.isatty(0):
        _without_stop_key()
    words, folder, environ = line_of(about)
    try:
        child = subprocess.Popen(words, cwd=folder, env=environ)
    except OSError as error:
        print(f"inv: the command cannot be run on the control host: {error}", file=sys.stderr)
        return 1
    has_left = _follow(child)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if has_left:
        look_after()
        return code
    archive = digest = problem = ""
    try:
        archive, digest = copy_of()
    except Exception as error:  # a failed copy must not change the exit code of the command
        problem = f"{type(error).__name__}: {error}"
    said = {"code": code, "digest": digest, "problem": problem, "archive": archive if digest != about["holds"] else ""}
    write_durably(record.with_suffix(".over"), json.dumps(said))
    return code


def _follow(child: "subprocess.Popen[bytes]") -> bool:
    """Wait for the command; return whether the laptop left before the end."""
    outputs = select.poll()
    for number in (1, 2):
        outputs.register(number, 0)  # poll always reports errors
    has_left = False
    while True:
        try:
            child.wait(LOOK_S)
            return has_left
        except subprocess.TimeoutExpired:
            # A single closed stream is a reader of a pipe leaving, which the command notices by itself.
            if not has_left and len(outputs.poll(0)) == 2:
                has_left = True
                os.killpg(0, signal.SIGHUP)


def _forget_old(folder: Path) -> None:
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a concurrent session removed the file
            if one.stat().st_mtime < time.time() - KEPT_S:
                one.unlink()


def _without_stop_key() -> None:
    """Disable the suspend key, because no remote shell could resume a suspended program."""
    found = termios.tcgetattr(0)
    found[6][termios.VSUSP] = os.fpathconf(0, "PC_VDISABLE").to_bytes(1, sys.byteorder)
    termios.tcsetattr(0, termios.TCSANOW, found)
