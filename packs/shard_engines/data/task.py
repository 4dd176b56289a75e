"""A shard task: `python -m packs.shard_engines.data.task HOME NAME` runs HOME/NAME.json and records the exit code.

An engine starts the task on any machine that sees HOME. Output goes to NAME.log, progress to NAME.records and the exit
code to NAME.exit. A stopped or killed task writes no exit code; the next start continues the work. A second process of
the same task waits for the first. With SLIPWAY_PARENT set to a process id, the task ends with that process.
"""

import os
import sys
from pathlib import Path

from data.errors import DataError
from data.manifest import write_json
from data.single_writer import PARENT, exit_with_parent
from packs.shard_engines.data.work import locked

ENDS = (0, 1, 2)  # final exit codes; a new start would end the same way
BUSY = 75
WAIT_S = 60.0


def main(words: list[str]) -> int:
    home, name = Path(words[0]), words[1]
    exit_with_parent(os.environ.pop(PARENT, ""))
    with open(home / f"{name}.log", "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["SLIPWAY_RECORDS"] = str(home / f"{name}.records")
    try:
        with locked(home / f"{name}.lock", WAIT_S):
            if (home / f"{name}.exit").exists():  # The other process of this task, taken for dead, has finished.
                return 0
            from data.__main__ import main as data

            code = data(["text", "--config", str(home / f"{name}.json")])
            if code in ENDS:
                write_json(home / f"{name}.exit", code)
            return code
    except DataError as error:
        print(error, file=sys.stderr)
        return BUSY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
