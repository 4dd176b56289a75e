"""A sidecar step that runs beside all other steps: kept alive while steps run, asked to finish afterwards.

A sidecar writes a log, but has no progress and no mark. The process has the pod's token, so ending the pod ends the
sidecar too.
"""

import subprocess
import time
from typing import Callable, Dict, List, Optional

from infra.agent.execution.steps import begin
from infra.agent.job import PodFolder, Step
from infra.agent.shortage import Backoff, tolerate_shortage
from infra.agent.state import say

BACKOFF = Backoff(first_s=1.0, longest_s=60.0, certain=1.0)  # a single process on a pod needs no jitter
WELL_S = 60.0  # after this lifetime a restart counts as the first failure again
# exit codes of a sidecar after a request to finish, with a known outcome; all other codes mean a crash
FINISHED = (0, 1)
POLL_S = 0.05


class Sidecar:
    def __init__(
        self,
        pod: PodFolder,
        step: Step,
        words: Callable[[], List[str]],
        environ: Callable[[], Dict[str, str]],
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.pod = pod
        self.step = step
        self.words = words
        self.environ = environ
        self.backoff = backoff
        self.process: "Optional[subprocess.Popen[bytes]]" = None
        self.started_at = 0.0
        self.due_at = 0.0
        self.failures = 0  # consecutive failures

    def pid(self) -> Optional[int]:
        """Return the process id, or None while the sidecar is not running."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def ensure_running(self) -> None:
        """Start the sidecar if not running; after each failure wait longer before the restart."""
        if self.pid() is not None:
            return
        now = time.monotonic()
        if self.process is not None:
            self.process = None
            self._schedule_restart(now, "the process ended")
        if now >= self.due_at:
            self._start(now)

    def finish(self, deadline: Callable[[], float], wait: Callable[[], None]) -> bool:
        """Ask the sidecar to finish; return whether the sidecar reported success before the deadline.

        A sidecar that crashed or waits for a restart is started again, and detects the end by itself.
        """
        was_told = self.pid() is not None
        if was_told and self.process is not None:
            self.process.terminate()
        self.due_at = 0.0
        while time.monotonic() < deadline():
            with tolerate_shortage(say, f"checking {self.step.name}"):
                if self.pid() is None:
                    if was_told and self.process is not None and self.process.returncode in FINISHED:
                        say(f"{self.step.name}: finished with exit code {self.process.returncode}")
                        return self.process.returncode == 0
                    self.ensure_running()
                    was_told = self.process is not None
                wait()
            time.sleep(POLL_S)
        say(f"{self.step.name}: not finished before the deadline")
        return False

    def terminate(self) -> None:
        """Ask the sidecar to finish, without a restart."""
        if self.process is not None and self.pid() is not None:
            self.process.terminate()

    def _start(self, now: float) -> None:
        try:
            self.process = begin(self.pod, self.step, self.words(), self.environ())
        except (OSError, MemoryError) as error:  # memory, disk or the environment is missing at the moment
            self._schedule_restart(now, f"cannot be started ({error!r})")
            return
        self.started_at = now

    def _schedule_restart(self, now: float, why: str) -> None:
        is_well = self.started_at and now - self.started_at >= WELL_S
        self.failures = 1 if is_well else self.failures + 1
        wait_s = self.backoff.wait_s(self.failures)
        self.due_at = now + wait_s
        say(f"{self.step.name}: {why}; retry in {wait_s:g} s")
