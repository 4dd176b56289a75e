"""The near end of a command on a control host: OpenSSH lends it the streams, the terminal and the keys of this process.

In: a machine, and the line that runs `packs.control_host.control.session` there. Out: the exit code of ssh; and the
outcome that the session has left there, as a record.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import SlipwayError, UsageError
from infra.transport.ssh import Ssh
from packs.control_host.control.archive import MOST_TEXT
from store import outside

MOST_PROBLEM = 1000  # letters of a reason
MOST_OUTCOME = MOST_TEXT + (1 << 20)  # bytes
LOST = 255  # exit code of ssh without its connection
CHECK = "see: ./inv status"


@dataclass(frozen=True)
class RemoteOutcome:
    code: int
    archive: str = ""  # the copy of the journal; "" = it is as it was
    digest: str = ""  # digest of that; "" = none could be made
    problem: str = ""  # reason why it has none


def is_ours() -> bool:
    """Return whether stdin is a terminal that we may use: another job may have it in front of us."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal that is not ours to control: it can be read all the same
        return True


def lend(machine: Ssh, words: Sequence[str], cwd: Path) -> int:
    """Run a command there on our streams; return the exit code of ssh.

    The command has a terminal there where its input and its output are one here; otherwise its streams are pipes, so
    that stdout and stderr stay apart. Raises UsageError where this machine has no ssh.
    """
    if not shutil.which("ssh"):
        raise UsageError(
            "there is no ssh on this machine, by which commands reach a control host; install openssh-client"
        )
    is_terminal = is_ours() and os.isatty(1)
    line = machine.line(words, cwd, is_terminal=is_terminal)
    line[1:1] = ["-o", "LogLevel=ERROR"]  # without "Connection closed" at the end
    stdin = subprocess.DEVNULL if os.isatty(0) and not is_ours() else None
    process = subprocess.Popen(line, stdin=stdin)
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # ssh then gives the terminal back as it was
        process.wait()
        raise


def outcome_of(text: str) -> RemoteOutcome:
    """Return what a record says about the end of a command. Raises SlipwayError for one that is not of ours."""
    try:
        said = outside.mapping(text, most_bytes=MOST_OUTCOME)
        code, digest = outside.typed(said, "code", int), outside.typed(said, "digest", str)
        problem = outside.printable(outside.typed(said, "problem", str))[:MOST_PROBLEM]
        archive = outside.typed(said, "archive", str)
        if not 0 <= code <= 255:
            raise outside.Unreadable(f"its code is {code}, expected 0 to 255")
        if not archive.isascii():
            raise outside.Unreadable("its copy of the journal is not in ASCII")
        return RemoteOutcome(code, archive, outside.printable(digest)[:MOST_PROBLEM], problem)
    except ValueError as error:
        raise SlipwayError(
            f"the command on the control host has ended, and how cannot be read: {error}; {CHECK}"
        ) from None
