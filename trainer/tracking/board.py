"""TensorBoard over the figures of a run, whether anybody asked for a tracker or not: `inv forward RUN tensorboard`.

    python -m trainer.tracking.board --host HOST --port PORT

In: the run's folder, which SLIPWAY_WORK names. Out: TensorBoard's page, over files of events in a folder of its own,
which grow with the figures and go with this process.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainer.tracking.__main__ import LOOK_S, Sidecar
from trainer.tracking.tracker import TrackedRun

NAME = "tensorboard"
LEAVE_S = 10.0


def main(words: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # when the reader leaves, the page and its folder go, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    work = Path(os.environ["SLIPWAY_WORK"])
    with tempfile.TemporaryDirectory(prefix="slipway-board-") as private:
        run = TrackedRun(os.environ.get("SLIPWAY_RUN_ID", ""), Path(private, "events"))
        sidecar = Sidecar(NAME, run, work / "runs", Path(private, "state.json"))
        sidecar.begin()
        while sidecar.look():
            continue
        line = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.folder), "--reload_interval", "5", *words]
        shown = subprocess.Popen(line)
        try:
            while shown.poll() is None:
                sidecar.look()
                time.sleep(LOOK_S)
            return shown.returncode
        finally:
            shown.terminate()
            shown.wait(LEAVE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
