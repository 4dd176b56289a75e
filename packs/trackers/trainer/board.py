"""TensorBoard for the figures of a run, with or without a tracker: `inv forward RUN tensorboard`.

    python -m packs.trackers.trainer.board [--events FOLDER [--once]] --host HOST --port PORT

Reads the run's figures from the folder in SLIPWAY_WORK, appends event files as the figures grow, and serves
TensorBoard. With --events the files stay in FOLDER; otherwise the program deletes a temporary folder at exit. With
--once the program writes all present figures and exits without serving a page.
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
    for number in (signal.SIGTERM, signal.SIGHUP):  # When the port forward ends, stop the page and delete the folder.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path)
    parser.add_argument("--once", action="store_true")
    own, rest = parser.parse_known_args(words)
    work, parent = Path(os.environ["SLIPWAY_WORK"]), os.getppid()
    with tempfile.TemporaryDirectory(prefix="slipway-board-") as private:
        run = TrackedRun(os.environ.get("SLIPWAY_RUN_ID", ""), own.events or Path(private, "events"))
        sidecar = Sidecar(run, work / "runs", Path(private, "state.json"), TensorboardFiles)
        sidecar.open()
        while sidecar.send_new_records():
            continue
        if own.once:
            return 0
        line = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.folder), "--reload_interval", "5", *rest]
        shown = subprocess.Popen(line)
        try:
            while os.getppid() == parent and (shown.poll() is None or own.events):  # also without a page
                sidecar.send_new_records()
                time.sleep(LOOK_S)
            return shown.poll() or 0
        finally:
            shown.terminate()
            shown.wait(LEAVE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
