"""A tracker: a sidecar that sends metrics to a tracking service, with the last problem in a state file.

The process of the tracker (`trainer.tracking`) writes the state; the agent writes why no process could.
"""

import time
from typing import Callable, Dict, List

from infra.agent.execution.sidecars import Sidecar
from infra.agent.job import PodFolder, Step
from infra.agent.shortage import Backoff
from infra.agent.state import try_read_json, try_write_json

BACKOFF = Backoff(first_s=5.0, longest_s=300.0, certain=1.0)  # between two starts of a failing tracker
NOT_STARTED = "not started yet"


class Tracker(Sidecar):
    def __init__(
        self, pod: PodFolder, step: Step, words: Callable[[], List[str]], environ: Callable[[], Dict[str, str]]
    ) -> None:
        super().__init__(pod, step, words, environ, BACKOFF)
        self.state = pod.tracking / f"{step.config.get('tracker', '')}.json"
        if not self.state.exists():
            self._note(NOT_STARTED)

    def problem(self) -> str:
        """Return why the tracker does not take metrics, as last reported; "" = no problem is known."""
        return str(try_read_json(self.state).get("problem", ""))

    def missing(self) -> str:
        """Return why metrics are missing after the time to send them; "" if none are, or if there are none."""
        if not any(self.pod.work.glob("runs/*/metrics.jsonl")):
            return ""
        if self.pid() is not None:
            return self.problem() or "it is slow"
        has_finished = self.process is not None and self.process.poll() == 0
        return self.problem() or ("" if has_finished else f"its process ended; see logs/{self.step.name}.log")

    def _schedule_restart(self, now: float, why: str) -> None:
        super()._schedule_restart(now, why)
        self._note(f"{why}; see logs/{self.step.name}.log")

    def _note(self, problem: str) -> None:
        """Write a problem, unless the process of the tracker has written a problem of its own."""
        said = try_read_json(self.state)
        if said.get("problem", NOT_STARTED) in ("", NOT_STARTED):
            try_write_json(self.state, {**said, "problem": problem, "at": time.time()})
