"""Command line of the agent on a Slurm cluster: `python3 -m packs.slurm.agent start|stop|status|run DIR`.

`start`, `stop` and `status` run on a login node, which hosts no process of the run; Slurm starts `run` on every node.
"""

import os
import sys
from pathlib import Path
from typing import Sequence

from infra.agent import process
from infra.agent.state import AgentError
from packs.slurm.agent import commands, step
from packs.slurm.agent.queue import QueueError

VERBS = {"start": commands.start, "stop": commands.stop, "status": commands.status, "run": step.run}
ASK_LATER = 75  # exit code: Slurm does not answer at present


def main(words: Sequence[str]) -> int:
    """Run a command; return 0 on success, 1 on failure, 2 on a usage error, 75 when Slurm does not answer."""
    if len(words) != 2 or words[0] not in VERBS:
        print(f"usage: python3 -m packs.slurm.agent {'|'.join(VERBS)} DIR", file=sys.stderr)
        return 2
    os.umask(os.umask(0o022) | 0o022)
    process.disable_core_dumps()
    try:
        return VERBS[words[0]](Path(words[1]).absolute())
    except AgentError as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1
    except QueueError as error:
        print(f"Slurm does not answer: {error}", file=sys.stderr)
        return ASK_LATER


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
