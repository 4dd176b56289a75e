"""The small files by which guard, agent and commands of one pod agree.

`state/guard.lock` and `state/agent.lock` are held by flock for as long as their process lives, so a
lock says who lives and no crash leaves one behind. `state/stop.json` asks for the end: from then on nobody
is restarted. `state/verdict.json` is the end.
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

from infra.agent import outside
from infra.agent.job import Job, PodFolder, private, write_durably
from infra.agent.process import TOKEN, Identity, is_alive
from infra.agent.shortage import is_full, patient

CODE = Path(__file__).resolve().parents[2]
NODE_LOST = "lost"  # state of a verdict: another node is silent for good; on machines that answer the run can go on
LEFT = "left"  # the end of work that an engine restarts by itself, here or elsewhere: there is no verdict then
ENGINE = "SLIPWAY_ENGINE"  # the engine that does so: "slurm"; not set where there is none
STOP_BYTES = 1 << 14  # room on the disk for a request to stop
VERDICT_BYTES = 1 << 18  # and for the verdict, the progress before it and the lines in logs
UNCARRIED = "not in the store yet"  # in a verdict's reason: something that was made is only on its pod


class AgentError(Exception):
    """Something is wrong with this pod; the message is one line."""


def read_job(pod: PodFolder) -> Job:
    """Return the job of a pod. Raises AgentError when the folder holds no job that this agent reads."""
    try:
        return Job.from_json(patient(pod.job.read_text)(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{pod.job}: {error}") from error


@patient
def read_json(path: Path) -> Dict[str, Any]:
    """Return the content of a file; {} when there is no such file. Raises ValueError, TypeError for another content."""
    try:
        with open(path, "rb") as file:
            return dict(outside.parse(file.read(outside.MOST_BYTES + 1)))
    except FileNotFoundError:
        return {}


def said_in(path: Path) -> Dict[str, Any]:
    """Return the content as read_json does, of a file that another program writes: {} also when it cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError, TypeError):
        return {}


@patient
def write_json(path: Path, value: Any) -> None:
    """Replace a file by this value; on a full disk in the room that `keep_room` has taken for it, where it has."""
    text = json.dumps(value, indent=1) + "\n"
    try:
        write_durably(path, text)
    except OSError as error:
        if not is_full(error) or not give_room(path):
            raise
        write_durably(path, text)


def keep_room(pod: PodFolder) -> None:
    """Take the room on the disk that the end of the work needs.

    A step that fills the disk would keep the request to stop and the verdict from being written, and the pod would not
    end before its limit. The bytes are random, as some file systems keep none for zeros.
    """
    for path, size in ((stop_file(pod), STOP_BYTES), (pod.verdict, VERDICT_BYTES)):
        room = _room(path)
        if not room.exists():
            try:
                room.write_bytes(os.urandom(size))
            except OSError as error:
                say(f"could not keep room for {path.name}: {error!r}")


def give_room(path: Path) -> bool:
    """Free the room that was taken for a file; return whether there was any."""
    try:
        _room(path).unlink()
        return True
    except FileNotFoundError:
        return False


def _room(path: Path) -> Path:
    return path.with_name(f".{path.name}.room")


def tell(path: Path, value: Any) -> None:
    """Write what is written again soon: a full disk costs the reader news, not the pod its work."""
    try:
        write_durably(path, json.dumps(value, indent=1) + "\n")
    except (OSError, MemoryError) as error:
        say(f"could not write {path.name}: {error!r}")


@patient
def hold(path: Path, wait_s: Optional[float] = 2.0) -> Optional[int]:
    """Acquire the lock for the rest of this process, or until the descriptor is closed; None when another holds it.

    The wait is there because somebody who only looks holds it for a moment. Where it is None, wait without end.
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


@patient
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
    """Return the lock of `guard`, `agent`, or `command` (start and stop, one at a time)."""
    return pod.state / f"{role}.lock"


def stop_file(pod: PodFolder) -> Path:
    return pod.state / "stop.json"


def attempt_file(pod: PodFolder) -> Path:
    """Return the file about the step that runs or ran last: its name, its pid, and its exit code once that is known.

    Written by the agent, and by the guard when there is no agent. Without an exit code nobody knows how a step ended
    whose agent has died, and the next agent runs it again.
    """
    return pod.state / "attempt.json"


def report(pod: PodFolder, role: str) -> Path:
    """Return the file in which guard or agent report on themselves: identity, token and more."""
    return pod.state / f"{role}.json"


@patient
def living(pod: PodFolder, role: str) -> Optional[Identity]:
    """Return the process that holds this role now; None also while a new holder has not yet reported."""
    said = said_in(report(pod, role)).get("identity")
    identity = Identity(**said) if said else None
    return identity if identity and is_held(lock(pod, role)) and is_alive(identity) else None


def leaving(pod: PodFolder) -> Optional[Identity]:
    """Return the guard that is ending the whole pod, its work being over; None when none does."""
    guard = living(pod, "guard")
    return guard if guard and said_in(report(pod, "guard")).get("is_leaving") else None


def ask_to_stop(
    pod: PodFolder, state: str, reason: str, grace_s: float, carry_s: Optional[float] = None
) -> Dict[str, Any]:
    """Ask for the end; the first request counts. `state` is what the verdict will say: stopped, limit or failed.

    carry_s: what the sidecar may take to finish, once the steps are over; as long as a step unless given.
    """
    if not stop_file(pod).exists():
        asked = {"state": state, "reason": reason, "grace_s": grace_s, "at": time.time()}
        write_json(stop_file(pod), asked if carry_s is None else {**asked, "carry_s": carry_s})
    return read_json(stop_file(pod))


def end_of_machine() -> str:
    """Return the state of the work when this machine is taken from it (SIGTERM)."""
    return LEFT if os.environ.get(ENGINE) else "stopped"


def grace_s() -> float:
    """Return how long a step may take to stop in good order."""
    return float(os.environ.get("SLIPWAY_GRACE_S", "60"))


def carry_s(job: Job, asked: Dict[str, Any]) -> float:
    """Return how long the last uploads may take after this request to stop; 0 for a job that has nobody for them."""
    if job.beside is None or job.group.rank:
        return 0.0
    return float(asked.get("carry_s", grace_s()))


def verdict(
    job: Job,
    state: str,
    reason: str = "",
    step: str = "",
    exit_code: Optional[int] = None,
    lost: Optional[int] = None,  # with NODE_LOST: the rank of the node that was not heard from
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


def put_away(pod: PodFolder) -> None:
    """Rename the verdict to the next free `verdict-1.json`, `verdict-2.json`, ..."""
    if pod.verdict.exists():
        number = 1 + len(list(pod.state.glob("verdict-*.json")))
        pod.verdict.rename(pod.state / f"verdict-{number}.json")


def close(pod: PodFolder, ending: Dict[str, Any]) -> Dict[str, Any]:
    """Write the verdict for an agent that could not, and let its progress agree. Returns the verdict that holds."""
    if not pod.verdict.exists():
        give_room(pod.verdict)  # the progress is written first
        progress = read_json(pod.progress)
        if progress:
            for step in progress["steps"]:
                if step["state"] == "running":
                    step.update(state="failed" if ending["state"] == "failed" else "waiting", ended_at=time.time())
            progress.update(state=ending["state"], updated_at=time.time())
            write_json(pod.progress, progress)
        write_json(pod.verdict, ending)
    return read_json(pod.verdict)


@patient
def spawn(pod: PodFolder, job: Job, role: str, key: str = "") -> "subprocess.Popen[bytes]":
    """Start `guard` or `run` (the agent) in a session of its own, with its words in a log.

    `key`: what it is handed by its stdin.
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
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended already, as its log says
            process.stdin.write(key.encode())
    return process


def say(text: str) -> None:
    """Write one timed line into this process's log."""
    with contextlib.suppress(OSError, MemoryError):  # the disk of the log is full; the work must not end for that
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)
