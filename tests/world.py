"""An installation of its own for tests of whole commands: journal, pods and store in one folder."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import environ, pids

ROOT = Path(__file__).parents[1]
# Of a world all of whose work is done here: of two trainings that share the cores, each waits for the threads of the
# other. With another number of threads a training has other bits, so that nothing done elsewhere is compared with it.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class World:
    """An installation of its own: journal, pods and store in one folder."""

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)  # more variables

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "SLIPWAY_STATE_FILE": str(self.folder / "state" / "journal.db"),
            "SLIPWAY_STORE": str(self.folder / "artifacts"),
            "SLIPWAY_PODS": str(self.folder / "pods"),
            "SLIPWAY_PROFILE": "tiny",
            "SLIPWAY_RESERVE_BYTES": "0",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            **self.extra,
        }

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            env=self.environ,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def inv(self, *words: str, code: int = 0) -> str:
        """Return the stdout of `inv words`, which must exit with `code`."""
        process = self.begin(*words)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"inv {' '.join(words)}: exit code {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out

    def json(self, *words: str, code: int = 0) -> dict:
        return json.loads(self.inv(*words, "--json", code=code))

    def take(self, store: Path) -> None:
        """Begin with a copy of what that store holds."""
        shutil.copytree(store, self.folder / "artifacts")

    def verdicts(self, pods: Path | None = None) -> list[dict]:
        """Return the verdicts of the runs whose pods are here or in `pods`, as far as there are any."""
        return said_by(pods or self.folder / "pods", "verdict")

    def steps_at_work(self, pods: Path | None = None) -> list[str]:
        """Return the current steps of the runs whose pods are here or in `pods`."""
        return [one["step"] for one in said_by(pods or self.folder / "pods", "progress") if one["step"]]

    def model(self, phase: str) -> bytes:
        """The weights of a published phase."""
        return next((self.folder / "artifacts" / phase / "tiny" / "hf").glob("*.safetensors")).read_bytes()

    def lose(self, *phases: str) -> None:
        """Remove what these phases have made, under its name and under its fingerprint."""
        for phase in phases:
            for folder in (self.folder / "artifacts", self.folder / "artifacts" / "by-fingerprint"):
                shutil.rmtree(folder / phase)

    def processes(self) -> list[int]:
        """Every process whose environment names this world."""
        mine = f"SLIPWAY_STATE_FILE={self.folder}/".encode()
        return [pid for pid in pids() if pid != os.getpid() and mine in environ(pid)]

    def kill(self) -> None:
        """End all of them by SIGKILL, those included that one of them begins anew meanwhile."""
        while victims := self.processes():
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def said_by(pods: Path, name: str) -> list[dict]:
    """Return the contents of that state file of each pod in the folder.

    Who waits for it by a command again and again takes a core from what it waits for.
    """
    found = []
    for path in sorted(pods.glob(f"*/state/{name}.json")):
        with contextlib.suppress(FileNotFoundError):  # it was put away meanwhile
            found.append(json.loads(path.read_text()))
    return found


def until(truth, what: str, within_s: float = 120.0):
    """The first true value of `truth()`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := truth():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {within_s:g} s: {what}")
