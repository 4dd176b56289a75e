"""Run a guard that waits for the agent to exit between the check for a verdict and the check for the agent."""

import sys
import time
from pathlib import Path

from infra.agent.lifecycle import guard

look = guard.Guard._reason_to_stop


def dawdle(self):
    while self.agent is not None and self._is_agent_alive():
        time.sleep(0.02)
    return look(self)


guard.Guard._reason_to_stop = dawdle  # type: ignore[method-assign]
sys.exit(guard.guard(Path(sys.argv[1])))
