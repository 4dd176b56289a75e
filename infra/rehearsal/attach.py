"""The rehearsal of a user: starts, finds and stops a simulated world in a separate process, and connects to the world.

All worlds of a user are in a folder beside the journal, and at most one world runs at a time. Each world has a folder
with journal, store and machines, which is kept until the next world starts.

The folder holds an overlay of settings. A process with SLIPWAY_REHEARSAL set to this folder, and all children, use the
world through their ordinary settings without knowing about the rehearsal.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import journal_file
from infra.agent.job import write_durably
from infra.agent.process import Identity, is_alive, send
from infra.errors import SlipwayError, UsageError
from infra.names import random_word
from infra.rehearsal.world_files import ABOUT, ENDED, end_leftovers
from infra.settings import VENDORS
from store import local_files

ROOT = Path(__file__).parents[2]
MARK, CURRENT = "REHEARSAL", "current"
JOURNAL = "journal.sqlite"
INSIDE = "SLIPWAY_REHEARSAL"  # the folder of the world for a process and its children
SPEED = 60.0
IDLE_S = 900.0
START_S = 60.0
STOP_S = 60.0
ASK_S = 20.0
AGAIN = "start a rehearsal with: inv rehearse"


class NoWorld(UsageError):
    """Raised when no rehearsal runs; the message gives the reason."""


class AlreadyRuns(UsageError):
    """Raised when a rehearsal runs already, perhaps just started by a concurrent command."""


@dataclass(frozen=True)
class Running:
    """A running world, alive at the time of the check."""

    folder: Path
    about: Mapping[str, Any]

    @property
    def identity(self) -> Identity:
        return Identity(**self.about["process"])

    @property
    def speed(self) -> float:
        return float(self.about["speed"])

    def truth(self) -> dict[str, Any]:
        """Return the true state of the world. Raises NoWorld if the world no longer answers."""
        return self._ask("/truth")

    def calls(self) -> list[dict[str, Any]]:
        """Return every request to a vendor so far. Raises NoWorld."""
        return self._ask("/calls")

    def send_command(self, path: str, body: Any) -> Any:
        """POST a command to `control`. Raises UsageError for a refused command, and NoWorld if the world has ended."""
        return self._ask(path, body)

    def _ask(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.about["truth"] + path, content, {"Content-Type": "application/json"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=ASK_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise UsageError(f"the rehearsal refuses {path}: {json.loads(error.read())['error']}") from None
        except OSError as error:
            raise NoWorld(f"the rehearsal does not answer ({error}); {AGAIN}") from None


def worlds_folder(state_file: Path) -> Path:
    """Return the folder of the worlds of a journal."""
    return state_file.with_name(f"{state_file.stem}-rehearsal")


def overlay(folder: Path, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings variables for the world in a folder."""
    vendors = {name: about[name] for name in VENDORS}
    return {
        **{f"SLIPWAY_{name.upper()}_URL": vendor["url"] for name, vendor in vendors.items()},
        **{f"{name.upper()}_API_KEY": vendor["key"] for name, vendor in vendors.items()},
        "LIUM_SELF_END_KEY": about.get("end_keys", {}).get("lium", ""),
        "SLIPWAY_STATE_FILE": str(folder / JOURNAL),
        "SLIPWAY_STORE": str(folder / "artifacts"),
        "SLIPWAY_PODS": str(folder / "here" / "pods"),
        "SLIPWAY_POOLS": str(folder / "pools.yaml"),  # missing on purpose: own machines are not rehearsed
        "SLIPWAY_CLOCK_SCALE": f"{about['speed']:.6f}",
        # Simulated machines share the disk of this machine. A busy disk must not refuse each of them.
        "SLIPWAY_ACCEPT_DISK_MB_S": "1",
        "SLIPWAY_ACCEPT_FREE_GB": "1",
    }


def find(base: Path) -> Running:
    """Return the running world. Raises NoWorld, which reports the end of the last world."""
    try:
        folder = base / (base / CURRENT).read_text().strip()
    except FileNotFoundError:
        raise NoWorld(f"no rehearsal runs; {AGAIN}") from None
    try:
        running = Running(folder, json.loads((folder / ABOUT).read_text()))
        if is_alive(running.identity):
            return running
        pid = running.identity.pid
        raise NoWorld(f"the rehearsal has died (process {pid}); all simulated machines are gone; {AGAIN}")
    except (FileNotFoundError, ValueError):
        raise NoWorld(f"no rehearsal runs{_last_words(folder)}; {AGAIN}") from None


def start(base: Path, *words: str, speed: float, idle_s: float = IDLE_S) -> Running:
    """Start a new world; return the world once it answers.

    `words` are further arguments of `python -m infra.rehearsal`. Raises AlreadyRuns, and UsageError for invalid
    arguments.
    """
    with _alone(base):
        with contextlib.suppress(NoWorld):
            found = find(base)
            raise AlreadyRuns(f"a rehearsal already runs in {found.folder}; to end the rehearsal: inv rehearse --stop")
        _clear(base)
        folder = base / f"world-{random_word(8)}"
        folder.mkdir(mode=0o700)
        (folder / MARK).touch()
        write_durably(base / CURRENT, folder.name)
        line = [sys.executable, "-m", "infra.rehearsal", "--state", str(folder), "--speed", str(speed)]
        line += ["--idle-s", str(idle_s), *words]
        log = folder / "world.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (folder / ABOUT).exists():
                return find(base)
            if process.poll() is not None:
                said = log.read_text().strip() or f"the rehearsal exited with exit code {process.returncode}"
                raise UsageError(said.removeprefix("rehearsal: "))
            time.sleep(0.02)
        process.kill()
        process.wait()
        raise SlipwayError(f"the rehearsal did not start within {START_S:g} s; see {log}")


@contextmanager
def temporary(*words: str, speed: float) -> Iterator[Running]:
    """Yield a new world outside the folder of the user, and end and remove the world afterwards.

    The worlds of the user, also ended worlds, keep their files. Raises UsageError for invalid arguments.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-rehearsal-") as folder:
        base = Path(folder)
        try:
            yield start(base, *words, speed=speed)
        finally:
            with contextlib.suppress(NoWorld):
                stop(base)
            _clear(base)


def stop(base: Path) -> Running:
    """Stop the world and wait until all processes have ended. Raises NoWorld when no world runs."""
    with _alone(base):
        found = find(base)
        send(found.identity, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while is_alive(found.identity):
            if time.monotonic() > deadline:
                pid = found.identity.pid
                raise SlipwayError(f"the rehearsal (process {pid}) does not end; run: kill -9 {pid}")
            time.sleep(0.02)
    return found


def _last_words(folder: Path) -> str:
    try:
        ended = json.loads((folder / ENDED).read_text())
    except (FileNotFoundError, ValueError):
        return ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ended["at"]))
    return f" (the last rehearsal ended at {when}: {ended['why']})"


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Hold the lock, so that only one process starts or stops worlds at a time."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    with local_files.holding_lock(base / "lock"):
        yield


def _clear(base: Path) -> None:
    """Remove the files of ended worlds, and the processes of killed worlds."""
    for folder in base.glob("world-*"):
        if (folder / MARK).exists():
            end_leftovers(folder / "pods")
            journal_file.installation_file(folder / JOURNAL, os.environ).unlink(missing_ok=True)
            shutil.rmtree(folder)
