"""Reaching a machine: run words there, put and get files, push code.

One protocol; here the implementation for the machine in front of the user.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.agent.job import PodFolder, write_durably
from infra.errors import SlipwayError, UsageError
from infra.shipment import Refusal, pack


@dataclass(frozen=True)
class Result:
    exited: int  # negative: ended by that signal
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Pushed:
    """What a push did, in numbers of files."""

    sent: int
    unchanged: int
    removed: int
    refused: tuple[Refusal, ...] = ()


class TimedOut(SlipwayError):
    """It took too long; on this machine it was ended with its process group."""


class Transport(Protocol):
    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run one program to its end; `env` comes on top of what the machine has. Raises TimedOut, SlipwayError."""

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        """Replace the file at once and durably; folders are made."""

    def get(self, path: str | Path) -> bytes:
        """Raises FileNotFoundError."""

    def push(self, root: Path, dest: str | Path, token: str) -> Pushed:
        """Make `dest` hold the code of `root`: what git would keep, minus secrets, which are returned as refused.

        Only into a folder beside the marker of the pod with `token`. What an earlier push brought and is no
        longer there is removed; what the pod made itself stays; unchanged files are not touched.
        """


class ThisMachine:
    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        try:
            child = subprocess.Popen(
                words, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                env={**os.environ, **(env or {})}, start_new_session=True)  # fmt: skip
        except OSError as error:
            raise SlipwayError(f"{words[0]} cannot be run: {error}") from error
        try:
            stdout, stderr = child.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{' '.join(words)}: no end after {timeout_s:g} s") from None
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                for pipe in (child.stdin, child.stdout, child.stderr):
                    if pipe:
                        pipe.close()
        return Result(child.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.{os.getpid()}.draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, place)

    def get(self, path: str | Path) -> bytes:
        return Path(path).read_bytes()

    def push(self, root: Path, dest: str | Path, token: str) -> Pushed:
        pod = PodFolder(Path(os.path.realpath(os.path.dirname(dest))))
        target = pod.root / os.path.basename(dest)
        _check_marker(pod, token)
        if target.is_symlink():
            raise UsageError(f"{target} is a link; nothing is pushed through it")
        shipment = pack(root)
        memory = pod.state / "pushed.json"
        earlier = set(json.loads(memory.read_text())) if memory.exists() else set()
        gone = sorted(earlier - set(shipment.files))
        # Both lists, so that a push that is cut off is cleaned up by the next.
        write_durably(memory, json.dumps(sorted(earlier | set(shipment.files))))
        removed = sum(_remove(target, path) for path in gone)
        sent = sum(_send(shipment.root / path, target, path) for path in shipment.files)
        write_durably(memory, json.dumps(shipment.files))
        return Pushed(sent, len(shipment.files) - sent, removed, shipment.refused)


def reach(vendor: str) -> Transport:
    """The way to a pod of that provider."""
    if vendor != "local":
        raise UsageError(f"there is no way yet to reach a pod of {vendor}")
    return ThisMachine()


def _check_marker(pod: PodFolder, token: str) -> None:
    try:
        found = json.loads(pod.marker.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{pod.root} carries no marker of ours; nothing is pushed there") from None
    if found != token:
        raise UsageError(f"{pod.root} is the pod of {found}, not of {token}; nothing is pushed there")


def _remove(target: Path, path: str) -> int:
    """Remove a file that an earlier push brought, and the folders that are empty then."""
    full = _inside(target, path)
    if full is None or not os.path.lexists(full) or (full.is_dir() and not full.is_symlink()):
        return 0
    full.unlink()
    for folder in full.parents:
        if folder == target or any(folder.iterdir()):
            break
        folder.rmdir()
    return 1


def _send(source: Path, target: Path, path: str) -> int:
    """0 when it was there already."""
    place = _inside(target, path)
    if place is None:
        raise UsageError(f"{target / path} lies behind a link; nothing is pushed through it")
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.draft")
    draft.unlink(missing_ok=True)
    if source.is_symlink():
        if place.is_symlink() and os.readlink(place) == os.readlink(source):
            return 0
        draft.symlink_to(os.readlink(source))
    else:
        mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
        if _is_same(source, place, mode):
            return 0
        shutil.copyfile(source, draft)
        draft.chmod(mode)
    os.replace(draft, place)
    return 1


def _is_same(source: Path, place: Path, mode: int) -> bool:
    if place.is_symlink() or not place.is_file():
        return False
    now = place.stat()
    is_alike = now.st_mode & 0o777 == mode and now.st_size == source.stat().st_size
    return is_alike and place.read_bytes() == source.read_bytes()


def _inside(target: Path, path: str) -> Path | None:
    """The place of `path` under `target`; None when a link stands in the way."""
    place = target / path
    return place if Path(os.path.realpath(place.parent)) == place.parent else None
