"""The timeline of a pod: which work the pod did from when on, as an append-only log.

    states of the agent and of its steps, records of the kind `part` from steps -> logs/timeline.log

The lines of a lost pod remain, because the log is copied, uploaded and continued on the next pod like every log.
"""

import json
import time
from pathlib import Path
from typing import Any, Dict

from infra.agent.limits import read_clocks
from infra.agent.state import say

NAME = "timeline"
ALIVE_EVERY_S = 10.0


class Timeline:
    """Each line is JSON with `at` (UTC epoch seconds), `clock_s` (the clock of the boot) and `token`.

    `agent`: the agent is in this state. `step` with `state`: the step is in this state. `step` with `part`: the step
    does this kind of work from now on, or did so for the last `took_s` seconds. Other lines: the agent is alive.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self.written_at = 0.0

    def add(self, **facts: Any) -> None:
        """Append a line; a full disk leaves a gap."""
        self.written_at = time.monotonic()
        clocks = read_clocks()
        line = {"at": round(clocks.wall_s, 3), "clock_s": round(clocks.boot_s, 3), "token": self.token, **facts}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")
        except (OSError, MemoryError) as error:
            say("could not write the timeline: %r" % error)

    def add_part(self, step: str, record: Dict[str, Any]) -> None:
        """Append a record of the kind `part`, with the clock of the step."""
        names = ("at", "clock_s", "part", "took_s")
        self.add(step=step, **{name: record[name] for name in names if name in record})

    def add_sign_of_life(self) -> None:
        """Append a line if the last line is old."""
        if time.monotonic() - self.written_at >= ALIVE_EVERY_S:
            self.add()
