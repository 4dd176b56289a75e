"""The commands start, stop and status: requests of the control side, each answered with one JSON document.

Start and stop hold one lock, so that they follow each other; both may be repeated.
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict

from infra.agent.job import Job, PodFolder, write_durably
from infra.agent.lifecycle import farewell
from infra.agent.limits import Clocks, gap_s, read_clocks
from infra.agent.process import end_all, hide_memory, in_words, send
from infra.agent.shortage import outlasting, patient
from infra.agent.state import (
    AgentError,
    ask_to_stop,
    attempt_file,
    carry_s,
    close,
    grace_s,
    hold,
    is_held,
    leaving,
    living,
    lock,
    put_away,
    read_job,
    read_json,
    report,
    spawn,
    stop_file,
    verdict,
    write_json,
)

ARM_S = 30.0
END_S = 20.0
PATIENCE_S = 2.0
POLL_S = 0.05


def start(root: Path) -> int:
    """Arm a guard, which starts the agent; return when it is armed. A pod that runs already is left alone.

    A guard that holds its pod takes up the job that lies there now.
    """
    pod = PodFolder(root)
    job = read_job(pod)
    key = farewell.read_key() if job.needs_key and hide_memory() else ""
    _take_turn(pod)
    if leaving(pod):
        raise AgentError(f"{root}: the work here is over, and the pod is ending itself; launch again")
    ending = pod.verdict.exists() or stop_file(pod).exists()
    if _holds(pod, job) and not stop_file(pod).exists():
        attempt_file(pod).unlink(missing_ok=True)
        if pod.verdict.exists():
            pod.progress.unlink(missing_ok=True)  # otherwise a process that follows reads the steps of the earlier work
        put_away(pod)
        write_durably(pod.handed_over, "")
    elif ending and not _await(lambda: not _anyone(pod), grace_s() + carry_s(job, {}) + END_S):
        raise AgentError(f"{root}: an earlier run is still ending; wait for it, or run: stop {root}")
    for role in ("guard", "agent"):
        other = read_json(report(pod, role)).get("token", job.token)
        if other != job.token and is_held(lock(pod, role)):
            raise AgentError(f"{root}: the {role} of another job runs here ({other}, not {job.token})")
    if not _anyone(pod):
        _begin_anew(pod, job)
    guard = None if is_held(lock(pod, "guard")) else spawn(pod, job, "guard", key)
    if not _await(lambda: _armed(pod, job), ARM_S):
        said = pod.log("guard").read_text(errors="replace").strip().splitlines() or ["nothing"]
        code = "" if guard is None or guard.poll() is None else f" (exit code {guard.returncode})"
        raise AgentError(f"{root}: the guard is not armed after {ARM_S:g} s{code}; it said: {said[-1]}")
    return _print({key: value for key, value in read_json(report(pod, "guard")).items() if key != "clocks"})


def stop(root: Path) -> int:
    """End everything of the pod but a guard that is ending the pod itself: 0 when nothing is left, else 1."""
    pod = PodFolder(root)
    job = read_job(pod)
    _take_turn(pod)
    patience_s = 0.0
    with outlasting(_warn, f"{root}: asking for an end in good order"):
        patience_s = END_S
        if job.stays or not pod.verdict.exists():
            asked = ask_to_stop(pod, "stopped", "asked to stop", grace_s())
            patience_s += asked["grace_s"] + carry_s(job, asked)
    _await(lambda: not _anyone(pod) or leaving(pod) is not None, patience_s)
    guard = leaving(pod)  # ending it would leave the pod running, and billing
    survivors = patient(end_all)(job.token, PATIENCE_S, [guard.pid] if guard else [])
    hidden = living(pod, "guard") if job.needs_key else None  # whose memory nobody reads, nor its token
    if hidden and not leaving(pod):
        send(hidden, signal.SIGKILL)
    if survivors:
        _warn(f"{root}: {in_words(survivors)}")
    ending = verdict(job, "stopped", "asked to stop")
    with outlasting(_warn, f"{root}: writing the verdict"):
        ending = close(pod, ending)
    pids = [one.pid for one in survivors]
    return _print({"stopped": not pids, "survivors": pids, "verdict": ending}, 1 if pids else 0)


def status(root: Path) -> int:
    pod = PodFolder(root)
    document: Dict[str, Any] = {
        role: {"alive": is_held(lock(pod, role)), **_said(report(pod, role))} for role in ("guard", "agent")
    }
    if clocks := document["guard"].get("clocks"):  # by this machine's clock: the reader's may be another one
        document["guard"]["age_s"] = gap_s(Clocks(**clocks), read_clocks())
    document["progress"] = _said(pod.progress) or None
    document["stop"] = _said(stop_file(pod)) or None
    document["verdict"] = _said(pod.verdict) or None
    return _print(document)


def _said(path: Path) -> Dict[str, Any]:
    """Return the content of a report. Raises AgentError for one that a program of the job has overwritten."""
    try:
        return read_json(path)
    except (ValueError, TypeError) as error:
        raise AgentError(f"{path}: it cannot be read: {error}") from error


def _begin_anew(pod: PodFolder, job: Job) -> None:
    """Archive the last verdict, and end what an earlier pod left in this folder, as no guard runs here."""
    before = read_json(report(pod, "guard"))
    if before and before["token"] != job.token:
        end_all(before["token"], PATIENCE_S)
    elif before and job.limits.micro_usd_per_hour == 0:
        # A machine that costs nothing does not use up its limit while it rests; a rented one bills on.
        write_json(report(pod, "guard"), {**before, "clocks": None})
    put_away(pod)
    stop_file(pod).unlink(missing_ok=True)
    attempt_file(pod).unlink(missing_ok=True)  # a second start means that the step is to run again


def _take_turn(pod: PodFolder) -> None:
    if hold(lock(pod, "command"), wait_s=grace_s() + 2 * END_S) is None:
        raise AgentError(f"{pod.root}: another start or stop is still in progress here")


def _anyone(pod: PodFolder) -> bool:
    return is_held(lock(pod, "guard")) or is_held(lock(pod, "agent"))


def _armed(pod: PodFolder, job: Job) -> bool:
    """Return whether the guard of this pod is armed.

    It lives, at work where there is work; or the job was so short that its verdict is there already.
    """
    lives = living(pod, "guard") is not None  # asked first: then it has said so
    said = read_json(report(pod, "guard"))
    is_ours = lives and said.get("token") == job.token
    return is_ours and said.get("holds", False) is (job.kind == "hold") or pod.verdict.exists()


def _holds(pod: PodFolder, job: Job) -> bool:
    """Return whether the guard of this very pod has nothing else to do."""
    lives = living(pod, "guard") is not None
    said = read_json(report(pod, "guard"))
    return lives and said.get("token") == job.token and said.get("holds", False)


def _await(truth: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not truth():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _print(document: Dict[str, Any], code: int = 0) -> int:
    print(json.dumps(document), flush=True)
    return code
