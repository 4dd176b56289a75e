"""Ranks as tasks of a Ray cluster that runs already.

In: the work. Out: nothing but what the tasks leave in its folder. Only `on_ray.py` imports Ray, run by an interpreter
that has it in the cluster's own version: no environment of ours holds Ray.
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
    "install the cluster's version (`ray --version` there) in an environment of its own:"
    " python3 -m venv ~/ray && ~/ray/bin/pip install ray==VERSION; then set SLIPWAY_RAY_PYTHON=~/ray/bin/python"
)


class Ray:
    def __init__(self, python: str):
        """Find the interpreter that has ray.

        python: its path; "" stands for that of the `ray` on the PATH. Raises InputError without one.
        """
        self.python = Path(python).expanduser() if python else _beside(shutil.which("ray"))
        if not self.python or not os.access(self.python, os.X_OK):
            raise InputError(f"--engine ray: {f'no {self.python}' if self.python else 'no ray here'}; {HOW}")
        self.process: subprocess.Popen[bytes] | None = None
        self.log = Path()

    def at_work(self, folder: Path) -> str:
        return ""  # Ray ends what a command began when the command is gone

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
                start_new_session=True,  # this process passes Ctrl-C on, once
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
            return "nothing: no task of Ray was there"
        self.process.terminate()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return "the tasks of Ray"


def _beside(ray: str | None) -> Path | None:
    """Return the interpreter that runs the command `ray`."""
    return Path(ray).resolve().parent / "python" if ray else None
