"""Command line of the agent: `python3 -m infra.agent start|stop|status DIR`; `guard|run DIR` are long-running."""

import os
import sys
from pathlib import Path
from typing import Sequence

from infra.agent import process
from infra.agent.execution import agent
from infra.agent.lifecycle import commands, guard
from infra.agent.state import AgentError

VERBS = {
    "start": commands.start,
    "stop": commands.stop,
    "status": commands.status,
    "guard": guard.guard,
    "run": agent.run,
}


def main(words: Sequence[str]) -> int:
    """Run a command; return 0 on success, 1 on failure, 2 for wrong arguments."""
    if len(words) != 2 or words[0] not in VERBS:
        print(f"usage: python3 -m infra.agent {'|'.join(VERBS)} DIR", file=sys.stderr)
        return 2
    # Only this user may write files that the agent executes or reads, under any umask of sshd or the container.
    os.umask(os.umask(0o022) | 0o022)
    process.disable_core_dumps()
    try:
        return VERBS[words[0]](Path(words[1]).absolute())
    except AgentError as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
