"""Worker process that answers one question at a time, with a timeout per question.

The parent writes one JSON value per question and reads one JSON value per answer. Code in the worker may loop, exhaust
memory or exit: the parent then kills the worker's process group and starts a new worker for the next question.
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
START_S = 120.0  # start timeout: importing sympy is slow on busy machines
READY = "ready"


class WorkerGone(Exception):
    """The worker timed out or exited; the message says which."""


def of_answers(kind: str, limit_s: float) -> "RewardWorker":
    """Return a worker that judges answers with `trainer.rewards.child`. kind: `math` or `own`."""
    return RewardWorker(
        [sys.executable, "-m", "trainer.rewards.child", kind], limit_s, environ={"OMP_NUM_THREADS": "1"}
    )


class RewardWorker:
    """Command that starts with the first question, prints READY, then replies to each line with a line."""

    def __init__(
        self,
        command: Sequence[str],
        timeout_s: float,
        start_s: float = START_S,
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Store the settings; the process starts with the first question.

        timeout_s: seconds per question. start_s: seconds to wait for READY, counted anew after each line before READY.
        environ: extra environment variables. log: file for the worker's stderr; None = stderr of the parent. say:
        callback for the lines before READY.
        """
        self.command, self.timeout_s, self.start_s = list(command), timeout_s, start_s
        self.environ, self.log, self.say = dict(environ or {}), log, say
        self.process: subprocess.Popen[bytes] | None = None
        self.rest = b""

    def ask(self, question: Any, timeout_s: float | None = None) -> Any:
        """Return the answer to a question. Raises WorkerGone, after which the next question starts a new process.

        timeout_s: seconds for this question; None = the worker's own.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        self.ensure_started()
        try:
            self._send(json.dumps(question).encode() + b"\n", limit_s)
            return json.loads(self._line(limit_s))
        except (OSError, ValueError) as error:
            self.close()
            raise WorkerGone(f"it has ended ({error})") from None
        except WorkerGone:
            self.close()
            raise

    def ensure_started(self) -> None:
        """Start the process unless already running. Raises WorkerGone."""
        if self.process is None:
            self._start()

    def close(self) -> None:
        """Kill the process group of the worker."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # the process may have exited already
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process, self.rest = None, b""

    def _start(self) -> None:
        environ = {**os.environ, **self.environ, PARENT: str(os.getpid())}
        with open(self.log, "ab") if self.log else contextlib.nullcontext() as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environ,
                start_new_session=True,
            )
        try:
            while (line := self._line(self.start_s).decode(errors="replace").strip()) != json.dumps(READY):
                if self.say is not None:
                    self.say(line)
        except WorkerGone:
            self.close()
            raise

    def _send(self, words: bytes, limit_s: float) -> None:
        """Write `words` to the worker within `limit_s` seconds, even if the worker does not read. Raises WorkerGone."""
        assert self.process is not None and self.process.stdin is not None
        pipe, until = self.process.stdin.fileno(), time.monotonic() + limit_s
        os.set_blocking(pipe, False)
        while words:
            if not select.select([], [pipe], [], max(0.0, until - time.monotonic()))[1]:
                raise WorkerGone(f"no answer in {limit_s:g} s")
            words = words[os.write(pipe, words) :]

    def _line(self, limit_s: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self.rest:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                raise WorkerGone(f"no answer in {limit_s:g} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise WorkerGone("it has ended")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line
