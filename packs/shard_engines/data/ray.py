"""Ray engine: runs the ranks as tasks of an existing Ray cluster.

Only `on_ray.py` imports Ray, in an interpreter with the cluster's version of Ray; no Slipway environment contains Ray.
The tasks leave all results in the work folder.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from data.errors import DataError, InputError
from data.single_writer import PARENT
from packs.shard_engines.data.work import ROOT, ShardWork, task_words

LEAVE_S = 25.0
HOW = (
    "install the cluster's version (on the cluster: `ray --version`) in a separate environment: "
    "python3 -m venv ~/ray && ~/ray/bin/pip install ray==VERSION; then set "
    "SLIPWAY_RAY_PYTHON=~/ray/bin/python"
)


class Ray:
    def __init__(self, python: str):
        """Find the interpreter with Ray.

        `python` is the interpreter's path; "" selects the interpreter of the `ray` command on the PATH. Raise
        InputError if no interpreter is found.
        """
        self.python = Path(python).expanduser() if python else _beside(shutil.which("ray"))
        if not self.python or not os.access(self.python, os.X_OK):
            raise InputError(f"--engine ray: {f'no {self.python}' if self.python else 'no ray here'}; {HOW}")
        self.process: subprocess.Popen[bytes] | None = None
        self.log = Path()

    def start(self, work: ShardWork, ranks: Sequence[int]) -> None:
        if not ranks:
            return
        self.work, self.names, self.log = work, [work.name(rank) for rank in ranks], work.file("ray", "log")
        words = [
            str(self.python),
            "-m",
            "packs.shard_engines.data.on_ray",
            str(work.home),
            str(work.cpus),
            task_words(work, "")[0],
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*words, *self.names],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # this process forwards Ctrl-C once
            )

    def status(self) -> str | None:
        if self.process is None or (code := self.process.poll()) == 0:
            return None
        if code is None:
            begun = sum(self.work.file(name, "records").exists() for name in self.names)
            return f"on Ray {begun} of {len(self.names)} began"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() or [f"it left with {code}"]
        if code == InputError.exit_code:
            raise InputError(lines[-1].replace("HOW", HOW))
        raise DataError(f"ray: {lines[-1]}")

    def cancel(self) -> str:
        if self.process is None or self.process.poll() is not None:
            return "nothing: Ray had no task of this command"
        self.process.terminate()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return "the tasks of Ray"


def _beside(ray: str | None) -> Path | None:
    """Return the interpreter beside the `ray` command, or None without the command."""
    return Path(ray).resolve().parent / "python" if ray else None
