"""Command lines of `inv` for a tool: typed arguments -> a line -> the JSON document of the command.

A line runs as a process of the owner, with the owner's keys, and without a terminal. Values are parts of `--flag=value`
words, so that no value can be a flag or a further command.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from infra.checkout import ROOT
from infra.errors import LimitHit, SlipwayError
from infra.units import moment
from packs.agents.control.answers import for_the_agent
from store.untrusted_input import printable

ANSWER_S = 900.0  # of a command that rents nothing
GRACE_S = 120.0  # of a command that ends its machines after SIGTERM
SHOWN = 700  # letters of an error
IN_THE_LOG = "the owner sees the messages in the log of the broker"
ALARM = "ALARM: "  # begins the error of a command that has worked: the end of a machine is not proven


def log(text: str) -> None:
    """Write a line to the log of the broker, which the owner reads."""
    print(f"{moment(time.time())} {text}", file=sys.stderr, flush=True)


class CommandFailed(SlipwayError):
    """Raised when a command of `inv` fails; the message is the part of the command's message for an agent."""

    def __init__(self, said: str, for_the_owner: str = "") -> None:
        super().__init__(said)
        self.for_the_owner = for_the_owner


def failure(command: str, said: str) -> CommandFailed:
    """Return the error for the message of a command; the log of the broker gets the whole message."""
    log(f"inv {command}: {printable(said)}")
    shown, rest = for_the_agent(said)
    return CommandFailed(shown[:SHOWN] or f"inv {command} failed; {IN_THE_LOG}", rest[:SHOWN])


class InvLines:
    """Runs command lines, in the world of this process: the real one, or a rehearsal."""

    def text(self, command: str, flags: Mapping[str, Any], words: Sequence[str] = ()) -> str:
        """Return the output of a command; for the rest, see `json`. Raises CommandFailed."""
        done = self._run(command, flags, words, (), ANSWER_S)
        said = _error(command, done.stderr)
        if done.returncode and not (done.returncode == LimitHit.exit_code and said.startswith(ALARM)):
            raise failure(command, said) if said else CommandFailed(_failed(command, done.returncode))
        return done.stdout

    def json(
        self,
        command: str,
        flags: Mapping[str, Any],
        words: Sequence[str] = (),
        held: Sequence[int] = (),
        most_s: float = ANSWER_S,
    ) -> Any:
        """Return the JSON document of a command. Raises CommandFailed.

        words: bare words behind the command. held: file descriptors that the process keeps open, such as a lock that
        must outlive this process. most_s: seconds until this process ends the command and its children.
        """
        done = self._run(command, {**flags, "json": True}, words, held, most_s)
        try:
            said, _ = json.JSONDecoder().raw_decode(done.stdout.lstrip())
        except ValueError:
            raise CommandFailed(_failed(command, done.returncode)) from None
        if done.returncode and isinstance(said, dict) and "error" in said:
            raise failure(command, str(said["error"]))
        # A command that has printed the document exits with this code if any machine of the owner is past a limit.
        if done.returncode not in (0, LimitHit.exit_code):
            raise CommandFailed(_failed(command, done.returncode))
        return said

    def _run(
        self, command: str, flags: Mapping[str, Any], words: Sequence[str], held: Sequence[int], most_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command; copy the messages of a failed command to the log of the broker, for the owner only."""
        line = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), command, *words, *_flags(flags)]
        environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
        process = subprocess.Popen(
            line,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=tuple(held),
            start_new_session=True,
        )
        with process:
            try:
                stdout, stderr = process.communicate(timeout=most_s)
            except subprocess.TimeoutExpired:
                _end_group(process)
                late = f"inv {command} has not ended after {most_s:g} s, and was ended"
                log(late)
                raise CommandFailed(f"{late}; see: status") from None
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(line, process.returncode, stdout, stderr)
        if done.returncode:
            log(f"inv {command} exited with code {done.returncode}: {printable(done.stderr.strip())}")
        return done


def _end_group(process: "subprocess.Popen[str]") -> None:
    """End a command and its children; after SIGTERM, a start first ends the machines of the start."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(wait_s)


def _error(command: str, stderr: str) -> str:
    """Return the error of a command without the lines before, which may be about other runs of the owner."""
    before, head, said = stderr.rpartition(f"inv {command}: ")
    return said.strip() if head else ""


def _failed(command: str, code: int) -> str:
    return f"inv {command} failed with exit code {code}; {IN_THE_LOG}"


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
