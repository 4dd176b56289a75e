"""Command lines of `inv` for a tool: typed arguments -> a line -> the JSON document of the command.

A line runs as a process of the owner, with the owner's keys, and without a terminal. Values are parts of `--flag=value`
words, so that no value can be a flag or a further command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from infra.checkout import ROOT
from infra.errors import SlipwayError
from store.untrusted_input import printable

ANSWER_S = 900.0  # of a command; a launch returns when the supervisor has taken the run over
SHOWN = 700  # letters of an error


class CommandFailed(SlipwayError):
    """Raised when a command of `inv` fails; the message is the message of the command."""


class InvLines:
    """Runs command lines, in the world of this process: the real one, or a rehearsal."""

    def text(self, command: str, flags: Mapping[str, Any], words: Sequence[str] = (), held: Sequence[int] = ()) -> str:
        """Return the output of a command. Raises CommandFailed.

        words: bare words behind the command. held: file descriptors that the process keeps open, such as a lock that
        must outlive this process.
        """
        line = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), command, *words, *_flags(flags)]
        environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
        try:
            done = subprocess.run(
                line,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                pass_fds=tuple(held),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"inv {command} has not ended after {ANSWER_S:g} s; see: status") from None
        if done.returncode:
            said = printable(done.stderr.strip()[-SHOWN:])
            raise CommandFailed(said or f"inv {command} failed with exit code {done.returncode}")
        return done.stdout

    def json(self, command: str, flags: Mapping[str, Any], words: Sequence[str] = (), held: Sequence[int] = ()) -> Any:
        """Return the JSON document of a command. Raises CommandFailed."""
        said = self.text(command, {**flags, "json": True}, words, held)
        try:
            return json.loads(said)
        except ValueError:
            raise CommandFailed(f"inv {command} printed no JSON document") from None


def _flags(flags: Mapping[str, Any]) -> list[str]:
    """Return the words of flags; false, empty and zero values are left out."""
    found = []
    for name, value in flags.items():
        if value is True:
            found.append(f"--{name}")
        elif isinstance(value, (list, tuple)):
            found += [f"--{name}={one}" for one in value]
        elif value:
            found.append(f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}")
    return found
