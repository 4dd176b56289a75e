"""The sidecar step that runs beside all others: kept alive while they run, asked to finish when they are over.

In: a job's `beside`. Out: its log; it is no step of progress and leaves no mark. It carries the pod's token, so
whoever ends the pod ends it too.
"""

import subprocess
import time
from typing import Callable, Dict, List, Optional

from infra.agent.execution.steps import begin
from infra.agent.job import PodFolder, Step
from infra.agent.shortage import Backoff, outlasting
from infra.agent.state import say

BACKOFF = Backoff(first_s=1.0, longest_s=60.0, certain=1.0)  # one process on one pod: jitter is not needed
WELL_S = 60.0  # a process that has lived for this long is restarted without delay
FINISHED = (0, 1)  # exit codes of one that was asked to finish and says how far it came; with any other it died
POLL_S = 0.05


class Beside:
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
        self.failures = 0  # in a row

    def pid(self) -> Optional[int]:
        """Return its process id; None while it does not live."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def keep(self) -> None:
        """Start it; start it again, a while later each time, when it has ended."""
        if self.pid() is not None:
            return
        now = time.monotonic()
        if self.process is not None:
            self.process = None
            self._rest(now, "it ended")
        if now >= self.due_at:
            self._start(now)

    def finish(self, deadline: Callable[[], float], wait: Callable[[], None]) -> bool:
        """Tell it that nothing more comes; whether it said, before the deadline, that its work is done.

        One that died, or was resting, is started again: it sees for itself that the end has come.
        """
        was_told = self.pid() is not None
        if was_told and self.process is not None:
            self.process.terminate()
        self.due_at = 0.0
        while time.monotonic() < deadline():
            with outlasting(say, f"a look at {self.step.name}"):
                if self.pid() is None:
                    if was_told and self.process is not None and self.process.returncode in FINISHED:
                        say(f"{self.step.name}: finished with exit code {self.process.returncode}")
                        return self.process.returncode == 0
                    self.keep()
                    was_told = self.process is not None
                wait()
            time.sleep(POLL_S)
        say(f"{self.step.name}: not finished when its time was over")
        return False

    def dismiss(self) -> None:
        """Tell it that nothing more comes; it is not started again."""
        if self.process is not None and self.pid() is not None:
            self.process.terminate()

    def _start(self, now: float) -> None:
        try:
            self.process = begin(self.pod, self.step, self.words(), self.environ())
        except (OSError, MemoryError) as error:  # memory, disk or environment is missing just now
            self._rest(now, f"it cannot be started ({error!r})")
            return
        self.started_at = now

    def _rest(self, now: float, why: str) -> None:
        is_well = self.started_at and now - self.started_at >= WELL_S
        self.failures = 1 if is_well else self.failures + 1
        wait_s = self.backoff.wait_s(self.failures)
        self.due_at = now + wait_s
        say(f"{self.step.name}: {why}; again in {wait_s:g} s")
