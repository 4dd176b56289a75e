"""`python -m packs.shard_engines.data.task HOME NAME`: do what HOME/NAME.json says, here, and write down how it ended.

Started by an engine on any machine that sees HOME. What it says goes to NAME.log, how far it is to NAME.records, its
exit code to NAME.exit, unless it was told to stop or killed: then it is to be started again, and goes on. A task that
was started twice waits until the first is gone. With SLIPWAY_PARENT, a process id, it does not outlive that process.
"""

import os
import sys
from pathlib import Path

from data.errors import DataError
from data.manifest import write_json
from data.single_writer import PARENT, die_with
from packs.shard_engines.data.work import MERGE, locked

ENDS = (0, 1, 2)  # what would not end otherwise if it were started again
BUSY = 75
WAIT_S = 60.0


def main(words: list[str]) -> int:
    home, name = Path(words[0]), words[1]
    die_with(os.environ.pop(PARENT, ""))
    with open(home / f"{name}.log", "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["SLIPWAY_RECORDS"] = str(home / f"{name}.records")
    try:
        with locked(home / f"{name}.lock", WAIT_S):
            if (home / f"{name}.exit").exists():  # by a task that was taken for dead
                return 0
            from data.__main__ import main as data

            code = data(["merge" if name == MERGE else "text", "--config", str(home / f"{name}.json")])
            if code in ENDS:
                write_json(home / f"{name}.exit", code)
            return code
    except DataError as error:
        print(error, file=sys.stderr)
        return BUSY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
