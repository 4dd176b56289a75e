"""The number of steps that fits the limit of the machine, by the pace of the run.

    guard's report -> `TimeLeft` -> seconds until the guard stops the work
    seconds left, pace of the last steps, later phases -> `LimitEnd` -> number of steps

The number only falls once the learning rate decays: a decay that starts again would waste the steps of the first decay.
"""

import contextlib
import json
import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.events import boot_clock_s, emit
from packs.deadline.records.job_variables import FEW, VARIABLE
from trainer.config import PhaseConfig, ScheduleConfig
from trainer.schedule_end import ScheduleEnd

REPORT = "SLIPWAY_GUARD_REPORT"  # path of the guard's report, set by the agent of the pod
READ_EVERY_S = 1.0
ENOUGH, FEWEST = 20, 3  # steps before the first decision; the least number, for a short phase
WINDOW = 200  # newest steps that give the pace
MARGIN = 0.02  # share of the remaining time kept free for slower steps
MORE = 0.05  # least growth of the number of steps, relative to the remaining steps
# Time kept free for the last evaluation and the publication: TAIL_S, plus the share TAIL of the time of all planned
# steps, plus the time to write the parameters; or TAIL_S plus the seconds that the plan expects, if these are more. The
# guard keeps more time free for uploads.
TAIL_S, TAIL, BYTES_PER_PARAM, BYTES_PER_S = 4.0, 0.02, 6, 100e6
MOST_TAIL = 0.1  # largest tail beside TAIL_S, relative to the time of this phase


@dataclass
class TimeLeft:
    """The seconds until the guard of the pod stops the work."""

    report: Path
    read_at: float = -math.inf
    found: Mapping[str, Any] = field(default_factory=dict)

    def at(self, now: float) -> float | None:
        """Return the seconds left at `now`, seconds of the boot clock; None without a limit or a guard."""
        if now - self.read_at >= READ_EVERY_S:
            self.read_at = now
            with contextlib.suppress(OSError, ValueError):  # on a full disk the previous reading stays valid
                self.found = json.loads(self.report.read_text(encoding="utf-8"))
        if self.found.get("stop_at_s") is None or not self.found.get("clocks"):
            return None
        left_s = (self.found["stop_at_s"] - self.found["elapsed_s"]) / self.found["clock_scale"]
        return float(left_s - (now - self.found["clocks"]["boot_s"]))


class LimitEnd(ScheduleEnd):
    """The end before the limit of the pod."""

    def __init__(self, config: PhaseConfig) -> None:
        super().__init__(config)
        path = os.environ.get(REPORT)
        self.time_left = TimeLeft(Path(path)) if path else None
        later = json.loads(os.environ.get(VARIABLE, "{}"))
        changing, fixed, phases, end_s, later_end_s = later.get(config.phase, (0.0, 0.0, 0, 0.0, 0.0))
        self.rest: tuple[float, float, int] = (changing, fixed, phases)
        self.end_s, self.later_end_s = float(end_s), float(later_end_s)
        self.times: deque[tuple[int, float]] = deque(maxlen=WINDOW + 1)
        self.end_at: float | None = None
        self.began = boot_clock_s()
        self.has_warned = False

    def num_steps(self, step: int, steps: int) -> int:
        return self.at(step, steps, boot_clock_s())

    def at(self, step: int, steps: int, now: float) -> int:
        """Return the number of steps after `step` of `steps`, at `now`, seconds of the boot clock."""
        self.times.append((step, now))
        left_s = self.time_left.at(now) if self.time_left else None
        first, began = self.times[0]
        is_early = len(self.times) <= min(ENOUGH, max(FEWEST, (steps - first) // 4))
        if left_s is None or is_early or step >= steps:  # After the last step no work is left to divide.
            return steps
        pace_s, planned = (now - began) / (step - first), self.config.steps
        if self.end_at is None:
            # Phases that may shrink are shortened alike: this phase gets the share of the time that its work has.
            changing, fixed, phases = self.rest
            own_s, later_s = pace_s * (planned - step), changing * pace_s * planned
            start_s = TAIL_S + began - self.began  # of each later phase, as of this phase
            kept_s = fixed * pace_s * planned + phases * start_s + self.end_s + self.later_end_s
            self.end_at = now + (left_s - kept_s) * own_s / (own_s + later_s) + self.end_s
        published_s = BYTES_PER_PARAM * self.config.model.num_params / BYTES_PER_S
        # A limit far below the planned time must leave time for steps. The evaluation is as long after few steps.
        most_s = MOST_TAIL * max(0.0, self.end_at - self.began)
        tail_s = TAIL_S + max(self.end_s, min(TAIL * pace_s * planned + published_s, most_s))
        room_s = self.end_at - now - tail_s
        fitting = step + math.floor(room_s * (1 - MARGIN) / pace_s)
        fitting = min(planned, max(step + 1, fitting))
        if pace_s * (steps - step) > room_s:
            self._warn(fitting)
            return min(steps, fitting)
        is_late = steps - step < ENOUGH or step >= decay_begin(self.config.with_steps(steps).schedule, steps)
        return steps if is_late or fitting - steps < MORE * (steps - step) else fitting

    def _warn(self, steps: int) -> None:
        """Report once that the limit leaves few of the planned steps."""
        planned = self.config.steps
        if not self.has_warned and steps < FEW * planned:
            self.has_warned = True
            words = f"{self.config.phase}: the limit leaves {steps:,} of {planned:,} steps, so the model will be poor"
            emit("note", text=f"{words}. To end the run: inv down RUN", alarm=True)


def decay_begin(schedule: ScheduleConfig, steps: int) -> float:
    """Return the step from which the learning rate decays in a run of `steps` steps."""
    return max(steps * (1 - schedule.decay), min(schedule.warmup_steps, steps - 1))
