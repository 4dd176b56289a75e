"""Run a launcher `inv` that moves its stamp into place only after two processes have written their stamps.

python paced_stamp.py FOLDER INV WORDS     FOLDER: the meeting point of the two processes
"""

import os
import runpy
import sys
import time
from pathlib import Path

meeting, sys.argv = Path(sys.argv[1]), sys.argv[2:]
rename = Path.replace


def replace(draft: Path, target: str) -> Path:
    if Path(target).name == "slipway-inv":
        (meeting / str(os.getpid())).touch()
        while len(list(meeting.iterdir())) < 2:
            time.sleep(0.01)
    return rename(draft, target)


Path.replace = replace  # type: ignore[method-assign,assignment]
runpy.run_path(sys.argv[0], run_name="__main__")
