"""A process beside ours that is asked one thing after another, and has a time limit for each.

In: the command that starts it, one JSON value per question. Out: its JSON values. What runs in it may loop, fill the
memory or end itself: then it is ended, with all that it has started, and the next question starts another one.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.single_writer import PARENT

ROOT = Path(__file__).parents[2]
START_S = 120.0  # time until it is ready: sympy is imported first, on machines that are busy
READY = "ready"


class NoAnswer(Exception):
    """The worker has not answered in time, or has ended; the message says which."""


def of_answers(kind: str, limit_s: float) -> "RewardWorker":
    """Return a process of `trainer.rewards.child`, which judges answers."""
    return RewardWorker(
        [sys.executable, "-m", "trainer.rewards.child", kind], limit_s, environ={"OMP_NUM_THREADS": "1"}
    )


class RewardWorker:
    """One command, started when it is first asked. It says READY, then answers each line with a line."""

    def __init__(
        self, command: Sequence[str], timeout_s: float, start_s: float = START_S,
        environ: Mapping[str, str] | None = None, log: Path | None = None, say: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """Take note of what to start, without starting it.

        start_s: until it is ready, from each line that it says before. log: where its stderr goes, instead of to ours;
        say: hears the lines before it is ready.
        """
        self.command, self.timeout_s, self.start_s = list(command), timeout_s, start_s
        self.environ, self.log, self.say = dict(environ or {}), log, say
        self.process: subprocess.Popen[bytes] | None = None
        self.rest = b""

    def ask(self, question: Any) -> Any:
        """Return its answer. Raises NoAnswer; the next question is put to a new process then."""
        self.begin()
        try:
            self._send(json.dumps(question).encode() + b"\n", self.timeout_s)
            return json.loads(self._line(self.timeout_s))
        except (OSError, ValueError) as error:
            self.close()
            raise NoAnswer(f"it has ended ({error})") from None
        except NoAnswer:
            self.close()
            raise

    def begin(self) -> None:
        """Start the process where it does not run. Raises NoAnswer."""
        if self.process is None:
            self._start()

    def close(self) -> None:
        """End the process, and what it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process, self.rest = None, b""

    def _start(self) -> None:
        environ = {**os.environ, **self.environ, PARENT: str(os.getpid())}
        with open(self.log, "ab") if self.log else contextlib.nullcontext() as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environ,
                start_new_session=True,
            )  # fmt: skip
        try:
            while (line := self._line(self.start_s).decode(errors="replace").strip()) != json.dumps(READY):
                if self.say is not None:
                    self.say(line)
        except NoAnswer:
            self.close()
            raise

    def _send(self, words: bytes, limit_s: float) -> None:
        """Write to it, in time also where it does not read."""
        assert self.process is not None and self.process.stdin is not None
        pipe, until = self.process.stdin.fileno(), time.monotonic() + limit_s
        os.set_blocking(pipe, False)
        while words:
            if not select.select([], [pipe], [], max(0.0, until - time.monotonic()))[1]:
                raise NoAnswer(f"no answer in {limit_s:g} s")
            words = words[os.write(pipe, words) :]

    def _line(self, limit_s: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self.rest:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                raise NoAnswer(f"no answer in {limit_s:g} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise NoAnswer("it has ended")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line
