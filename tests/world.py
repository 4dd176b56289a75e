"""A separate installation for tests of whole commands: journal, pods and store in one folder."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests import fork_server
from tests.processes import command_line, environ, pids

ROOT = Path(__file__).parents[1]
# For worlds with all work on this machine: two trainings that share the cores wait for each other's threads. A
# different number of threads gives different bits, so a result is never compared with results from elsewhere.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class World:
    """A separate installation: journal, pods and store in one folder."""

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)  # further variables

    @property
    def environ(self) -> dict[str, str]:
        # A narrow terminal of the tests would wrap the output, and no text of more than a line would be found.
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        return {
            **kept,
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

    def run(self, *words: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run `inv words` until its end, by the fork server where possible."""
        if type(self).begin is World.begin and fork_server.is_usable():
            return fork_server.run(words, self.environ, timeout_s)
        process = self.begin(*words)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def inv(self, *words: str, code: int = 0) -> str:
        """Return the stdout of `inv words`, which must exit with `code`."""
        done = self.run(*words)
        assert done.returncode == code, f"inv {shlex.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def json(self, *words: str, code: int = 0) -> dict:
        return json.loads(self.inv(*words, "--json", code=code))

    def take(self, store: Path) -> None:
        """Begin with a copy of the given store."""
        shutil.copytree(store, self.folder / "artifacts")

    def verdicts(self, pods: Path | None = None) -> list[dict]:
        """Return the available verdicts of the runs with pods on this machine, or in `pods`."""
        return read_states(pods or self.folder / "pods", "verdict")

    def steps_at_work(self, pods: Path | None = None) -> list[str]:
        """Return the current steps of the runs with pods on this machine, or in `pods`."""
        return [one["step"] for one in read_states(pods or self.folder / "pods", "progress") if one["step"]]

    def model(self, phase: str) -> bytes:
        """Return the weights of a published phase."""
        return next((self.folder / "artifacts" / phase / "tiny" / "hf").glob("*.safetensors")).read_bytes()

    def lose(self, *phases: str) -> None:
        """Remove the outputs of these phases, under the name and under the fingerprint."""
        for phase in phases:
            for folder in (self.folder / "artifacts", self.folder / "artifacts" / "by-fingerprint"):
                shutil.rmtree(folder / phase)

    def processes(self) -> list[int]:
        """Return every process with this world in the environment."""
        mine = f"SLIPWAY_STATE_FILE={self.folder}/".encode()
        return [pid for pid in pids() if pid != os.getpid() and mine in environ(pid)]

    def check_ended(self) -> None:
        """Check that at most the supervisor is left, and wait for its exit, which follows the release of its lease."""
        left = {pid: command_line(pid) for pid in self.processes()}
        assert all(b"scripts.runs.supervisor" in line for line in left.values() if line), left
        until(lambda: not self.processes(), "the exit of the supervisor", pause_s=0.1)

    def kill(self) -> None:
        """Kill all processes with SIGKILL, including restarted processes."""
        while victims := self.processes():
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def read_states(pods: Path, name: str) -> list[dict]:
    """Return the contents of a state file of each pod in the folder.

    Polling with a command would take a core from the awaited work.
    """
    found = []
    for path in sorted(pods.glob(f"*/state/{name}.json")):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found.append(json.loads(path.read_text()))
    return found


def until(truth, what: str, within_s: float = 120.0, pause_s: float = 0.05):
    """Return the first true value of `truth()`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := truth():
            return found
        time.sleep(pause_s)
    raise AssertionError(f"not within {within_s:g} s: {what}")
