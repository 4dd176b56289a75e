"""TensorBoard for the training of `inv pipeline`: a local page during training, and event files in the run's folder.

The event files in `runs/<experiment>/tensorboard` stay. TensorBoard errors are reported and never fail the training.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.settings import Settings
from packs.pipeline.control.workspace import Workspace
from packs.trackers.control.named import Tensorboard
from scripts.cli import local_step, render

PORT = Tensorboard.port
LEAVE_S = 20.0
ALL_S = 120.0


@contextmanager
def serve_tensorboard(space: Workspace, settings: Settings) -> Iterator[None]:
    """Serve TensorBoard while the body runs, then write the remaining metrics as event files.

    Without the TensorBoard environment, report the problem and run the body alone.
    """
    try:
        python = local_step.python(settings, Tensorboard.environment)
    except SlipwayError as error:
        render.say(f"without TensorBoard: {error}")
        yield
        return
    line = [str(python), "-m", Tensorboard.page, "--events", str(space.board)]
    environ = {**os.environ, **space.environ, "SLIPWAY_RUN_ID": space.experiment, "PYTHONPATH": str(ROOT)}
    log = space.run / "tensorboard.log"
    with log.open("ab") as out:
        shown = subprocess.Popen(
            [*line, "--host", "127.0.0.1", "--port", str(PORT)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        render.say(
            f"TensorBoard: port {PORT} of this machine during the training (of a run elsewhere: inv "
            f"forward RUN {PORT}:{PORT}); the files stay in {space.board}"
        )
        try:
            yield
        finally:
            shown.terminate()
            shown.wait(LEAVE_S)
        try:
            subprocess.run([*line, "--once"], cwd=ROOT, env=environ, stdout=out, stderr=out, timeout=ALL_S, check=True)
        except (subprocess.SubprocessError, OSError):
            render.say(f"TensorBoard did not get all metrics; see {log}")
