"""The small state files by which the guard, the agent and the commands of one pod coordinate.

The guard and the agent hold `state/guard.lock` and `state/agent.lock` with flock while they live, so a crash never
leaves a stale lock. `state/stop.json` requests the end: the guard and the agent restart no process afterwards.
`state/verdict.json` marks the end.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

from infra.agent import untrusted_json
from infra.agent.job import Job, PodFolder, private, write_durably
from infra.agent.process import TOKEN, Identity, is_alive
from infra.agent.shortage import is_full, retry_shortages

CODE = Path(__file__).resolve().parents[2]
NODE_LOST = "lost"  # verdict state: a node stays silent; the run can continue on other machines
LEFT = "left"  # end state without a verdict: an engine restarts the work, on this machine or elsewhere
ENGINE = "SLIPWAY_ENGINE"  # name of the restarting engine ("slurm"); unset without an engine
STOP_BYTES = 1 << 14  # disk space reserved for a stop request
VERDICT_BYTES = 1 << 18  # disk space reserved for the verdict, the progress before the verdict, and log lines
UNCARRIED = "not in the store yet"  # in the reason of a verdict: some artifacts exist only on the pod


class AgentError(Exception):
    """Raised for a problem with this pod; the message is one line."""


def read_job(pod: PodFolder) -> Job:
    """Return the job of a pod. Raises AgentError for a missing, damaged or unsupported job.json."""
    try:
        return Job.from_json(retry_shortages(pod.job.read_text)(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{pod.job}: {error}") from error


@retry_shortages
def read_json(path: Path) -> Dict[str, Any]:
    """Return the JSON object in a file, or {} for a missing file. Raises ValueError or TypeError for other content."""
    try:
        with open(path, "rb") as file:
            return dict(untrusted_json.parse(file.read(untrusted_json.MOST_BYTES + 1)))
    except FileNotFoundError:
        return {}


def try_read_json(path: Path) -> Dict[str, Any]:
    """Return the JSON object written to a file by a different program, or {} for a missing or unreadable file."""
    try:
        return read_json(path)
    except (OSError, ValueError, TypeError):
        return {}


@retry_shortages
def write_json(path: Path, value: Any) -> None:
    """Replace a file by this value as JSON; on a full disk, use the space reserved by `reserve_space`."""
    text = json.dumps(value, indent=1) + "\n"
    try:
        write_durably(path, text)
    except OSError as error:
        if not is_full(error) or not release_space(path):
            raise
        write_durably(path, text)


def reserve_space(pod: PodFolder) -> None:
    """Reserve the disk space for the stop request and the verdict.

    Without the reservation, a step that fills the disk would block both files, and the pod would run until its limit.
    The bytes are random, because some file systems allocate no space for zeros.
    """
    for path, size in ((stop_file(pod), STOP_BYTES), (pod.verdict, VERDICT_BYTES)):
        room = _room(path)
        if not room.exists():
            try:
                room.write_bytes(os.urandom(size))
            except OSError as error:
                say(f"could not reserve disk space for {path.name}: {error!r}")


def release_space(path: Path) -> bool:
    """Free the space reserved for a file; return whether space was reserved."""
    try:
        _room(path).unlink()
        return True
    except FileNotFoundError:
        return False


def _room(path: Path) -> Path:
    return path.with_name(f".{path.name}.room")


def try_write_json(path: Path, value: Any) -> None:
    """Write a frequently updated value; on a full disk, log the error instead of failing the work."""
    try:
        write_durably(path, json.dumps(value, indent=1) + "\n")
    except (OSError, MemoryError) as error:
        say(f"could not write {path.name}: {error!r}")


@retry_shortages
def acquire_lock(path: Path, wait_s: Optional[float] = 2.0) -> Optional[int]:
    """Lock a file until this process ends or closes the descriptor; return None if the lock is taken.

    Waits up to `wait_s` seconds, because `is_held` holds the lock for a moment; None waits without a limit.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + (wait_s or 0.0)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait_s is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)


@retry_shortages
def is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def lock(pod: PodFolder, role: str) -> Path:
    """Return the lock file of a role: `guard`, `agent`, or `command` (serializes start and stop)."""
    return pod.state / f"{role}.lock"


def stop_file(pod: PodFolder) -> Path:
    return pod.state / "stop.json"


def attempt_file(pod: PodFolder) -> Path:
    """Return the file about the current or last attempt at a step: name, pid, and the exit code once known.

    The agent writes the file, or the guard when no agent lives. If the agent died before the exit code was written, the
    next agent runs the step again.
    """
    return pod.state / "attempt.json"


def report(pod: PodFolder, role: str) -> Path:
    """Return the file in which the guard or the agent reports identity, token and more."""
    return pod.state / f"{role}.json"


@retry_shortages
def live_process(pod: PodFolder, role: str) -> Optional[Identity]:
    """Return the live process in a role, or None; also None before a new holder has written the report."""
    said = try_read_json(report(pod, role)).get("identity")
    identity = Identity(**said) if said else None
    return identity if identity and is_held(lock(pod, role)) and is_alive(identity) else None


def self_terminating_guard(pod: PodFolder) -> Optional[Identity]:
    """Return the guard if the guard is ending the whole pod after the work, else None."""
    guard = live_process(pod, "guard")
    return guard if guard and try_read_json(report(pod, "guard")).get("is_leaving") else None


def ask_to_stop(
    pod: PodFolder, state: str, reason: str, grace_s: float, carry_s: Optional[float] = None
) -> Dict[str, Any]:
    """Write a stop request unless a request exists, and return the valid request.

    `state` is the state of the coming verdict: stopped, limit, failed or LEFT. `carry_s` limits the
    sidecar's time to finish after the steps; the default is `grace_s()`.
    """
    if not stop_file(pod).exists():
        asked = {"state": state, "reason": reason, "grace_s": grace_s, "at": time.time()}
        write_json(stop_file(pod), asked if carry_s is None else {**asked, "carry_s": carry_s})
    return read_json(stop_file(pod))


def machine_end_state() -> str:
    """Return the end state when the machine is taken away (SIGTERM): LEFT under an engine, else "stopped"."""
    return LEFT if os.environ.get(ENGINE) else "stopped"


def grace_s() -> float:
    """Return the seconds that a step may take to stop cleanly (`SLIPWAY_GRACE_S`, default 60)."""
    return float(os.environ.get("SLIPWAY_GRACE_S", "60"))


def upload_s_after_stop(job: Job, asked: Dict[str, Any]) -> float:
    """Return the seconds that the last uploads may take after a stop request; 0 for a job or node without a sidecar."""
    if job.beside is None or job.group.rank:
        return 0.0
    return float(asked.get("carry_s", grace_s()))


def verdict(
    job: Job,
    state: str,
    reason: str = "",
    step: str = "",
    exit_code: Optional[int] = None,
    lost: Optional[int] = None,  # with NODE_LOST: rank of the silent node
) -> Dict[str, Any]:
    return {
        "run": job.run,
        "token": job.token,
        "state": state,
        "step": step,
        "exit_code": exit_code,
        "lost": lost,
        "reason": reason,
        "tail": "",
        "at": time.time(),
    }


def archive_verdict(pod: PodFolder) -> None:
    """Rename the verdict to `verdict-<n>.json`, with the next free number."""
    if pod.verdict.exists():
        number = 1 + len(list(pod.state.glob("verdict-*.json")))
        pod.verdict.rename(pod.state / f"verdict-{number}.json")


def write_missing_verdict(pod: PodFolder, ending: Dict[str, Any]) -> Dict[str, Any]:
    """Write the verdict in place of a dead agent, update the progress, and return the valid verdict.

    An existing verdict stays.
    """
    if not pod.verdict.exists():
        release_space(pod.verdict)  # the progress is written first
        progress = read_json(pod.progress)
        if progress:
            for step in progress["steps"]:
                if step["state"] == "running":
                    step.update(state="failed" if ending["state"] == "failed" else "waiting", ended_at=time.time())
            progress.update(state=ending["state"], updated_at=time.time())
            write_json(pod.progress, progress)
        write_json(pod.verdict, ending)
    return read_json(pod.verdict)


@retry_shortages
def spawn(pod: PodFolder, job: Job, role: str, key: str = "") -> "subprocess.Popen[bytes]":
    """Start the `guard` or the agent (`run`) in a new session, with output appended to a log.

    `key` is passed through stdin.
    """
    name = {"run": "agent"}.get(role, role)
    pod.logs.mkdir(parents=True, exist_ok=True)
    with open(pod.log(name), "ab", opener=private) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "infra.agent", role, str(pod.root)],
            cwd=pod.root,
            env={**os.environ, TOKEN: job.token, "PYTHONPATH": str(CODE)},
            stdin=subprocess.PIPE if key else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if process.stdin is not None:
        # the process has ended already; the log holds the reason
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(key.encode())
    return process


def say(text: str) -> None:
    """Write a line with a UTC timestamp to the log of this process."""
    with contextlib.suppress(OSError, MemoryError):  # A full disk under the log must not end the work.
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)
