"""TensorBoard over the figures of a run, whether anybody asked for a tracker or not: `inv forward RUN tensorboard`.

    python -m packs.trackers.trainer.board [--events FOLDER [--once]] --host HOST --port PORT

In: the run's folder, which SLIPWAY_WORK names. Out: TensorBoard's page, over files of events that grow with the
figures: in FOLDER, where they stay, else in a folder of its own, which goes with this process. With --once the files
get all that there is, without a page.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from packs.trackers.trainer.tensorboard_files import TensorboardFiles
from trainer.tracking.__main__ import LOOK_S, Sidecar
from trainer.tracking.tracker import TrackedRun

LEAVE_S = 10.0


def main(words: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # when the reader leaves, the page and its folder go, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path)
    parser.add_argument("--once", action="store_true")
    own, rest = parser.parse_known_args(words)
    work, parent = Path(os.environ["SLIPWAY_WORK"]), os.getppid()
    with tempfile.TemporaryDirectory(prefix="slipway-board-") as private:
        run = TrackedRun(os.environ.get("SLIPWAY_RUN_ID", ""), own.events or Path(private, "events"))
        sidecar = Sidecar(run, work / "runs", Path(private, "state.json"), TensorboardFiles)
        sidecar.begin()
        while sidecar.look():
            continue
        if own.once:
            return 0
        line = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.folder), "--reload_interval", "5", *rest]
        shown = subprocess.Popen(line)
        try:
            while os.getppid() == parent and (shown.poll() is None or own.events):  # files also without a page
                sidecar.look()
                time.sleep(LOOK_S)
            return shown.poll() or 0
        finally:
            shown.terminate()
            shown.wait(LEAVE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
