"""Local end of a command on a control host: OpenSSH connects the streams, the terminal and the keys of this process.

`run_with_terminal` runs a command line of `packs.control_host.control.session` on the host and returns the exit code of
ssh. `outcome_of` parses the record that the session leaves.
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
from store import untrusted_input

MOST_PROBLEM = 1000  # maximum length of a reason
MOST_OUTCOME = MOST_TEXT + (1 << 20)  # bytes
LOST = 255  # exit code of ssh for a connection failure
CHECK = "see: ./inv status"


@dataclass(frozen=True)
class RemoteOutcome:
    code: int
    archive: str = ""  # copy of the journal; "" = unchanged
    digest: str = ""  # digest of the journal; "" = no copy could be made
    problem: str = ""  # reason for the missing copy


def is_ours() -> bool:
    """Return whether stdin is a terminal and this process runs in the foreground."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal outside of our control is still readable
        return True


def run_with_terminal(machine: Ssh, words: Sequence[str], cwd: Path) -> int:
    """Run a command on the host with the local streams; return the exit code of ssh.

    The remote command gets a terminal when stdin and stdout are a terminal here; otherwise stdout and stderr are
    separate pipes. Raises UsageError without ssh on this machine.
    """
    if not shutil.which("ssh"):
        raise UsageError(
            "ssh is not installed on this machine, and commands reach a control host by ssh; install openssh-client"
        )
    is_terminal = is_ours() and os.isatty(1)
    line = machine.openssh_command(words, cwd, is_terminal=is_terminal)
    line[1:1] = ["-o", "LogLevel=ERROR"]  # hide "Connection closed" at the end
    stdin = subprocess.DEVNULL if os.isatty(0) and not is_ours() else None
    process = subprocess.Popen(line, stdin=stdin)
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # ssh then restores the terminal
        process.wait()
        raise


def outcome_of(text: str) -> RemoteOutcome:
    """Parse the outcome record of a command. Raises SlipwayError for an invalid record."""
    try:
        said = untrusted_input.mapping(text, most_bytes=MOST_OUTCOME)
        code, digest = untrusted_input.typed(said, "code", int), untrusted_input.typed(said, "digest", str)
        problem = untrusted_input.printable(untrusted_input.typed(said, "problem", str))[:MOST_PROBLEM]
        archive = untrusted_input.typed(said, "archive", str)
        if not 0 <= code <= 255:
            raise untrusted_input.UnusableDocument(f"the exit code is {code}; expected 0 to 255")
        if not archive.isascii():
            raise untrusted_input.UnusableDocument("the copy of the journal is not in ASCII")
        return RemoteOutcome(code, archive, untrusted_input.printable(digest)[:MOST_PROBLEM], problem)
    except ValueError as error:
        raise SlipwayError(
            f"the command on the control host has ended, but the result cannot be read: {error}; {CHECK}"
        ) from None
