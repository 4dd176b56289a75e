"""The commands start, stop and status: requests of the control side, each with a JSON document as the answer.

Start and stop hold the same lock and therefore run one after the other; both are safe to repeat.
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict

from infra.agent.job import Job, PodFolder, write_durably
from infra.agent.lifecycle import self_terminate
from infra.agent.limits import Clocks, gap_s, read_clocks
from infra.agent.process import describe_survivors, end_all, hide_memory, send
from infra.agent.shortage import retry_shortages, tolerate_shortage
from infra.agent.state import (
    AgentError,
    acquire_lock,
    archive_verdict,
    ask_to_stop,
    attempt_file,
    grace_s,
    is_held,
    live_process,
    lock,
    read_job,
    read_json,
    report,
    self_terminating_guard,
    spawn,
    stop_file,
    upload_s_after_stop,
    verdict,
    write_json,
    write_missing_verdict,
)

ARM_S = 30.0
END_S = 20.0
PATIENCE_S = 2.0
POLL_S = 0.05


def start(root: Path) -> int:
    """Start a guard, which starts the agent; return when the guard is armed. Do not disturb a pod that runs already.

    A guard that holds its pod takes over the current job.json. Raises AgentError if the guard is not armed in time.
    """
    pod = PodFolder(root)
    job = read_job(pod)
    key = self_terminate.read_key() if job.needs_key and hide_memory() else ""
    _take_turn(pod)
    if self_terminating_guard(pod):
        raise AgentError(f"{root}: the work has ended, and the pod is deleting itself; launch again")
    ending = pod.verdict.exists() or stop_file(pod).exists()
    if _holds(pod, job) and not stop_file(pod).exists():
        attempt_file(pod).unlink(missing_ok=True)
        if pod.verdict.exists():
            # otherwise a following process would read the steps of the earlier work
            pod.progress.unlink(missing_ok=True)
        archive_verdict(pod)
        write_durably(pod.handed_over, "")
    elif ending and not _await(lambda: not _anyone(pod), grace_s() + upload_s_after_stop(job, {}) + END_S):
        raise AgentError(f"{root}: an earlier run is still ending; wait, or run: stop {root}")
    for role in ("guard", "agent"):
        other = read_json(report(pod, role)).get("token", job.token)
        if other != job.token and is_held(lock(pod, role)):
            raise AgentError(f"{root}: the {role} of another job is running in this folder ({other}, not {job.token})")
    if not _anyone(pod):
        _begin_anew(pod, job)
    guard = None if is_held(lock(pod, "guard")) else spawn(pod, job, "guard", key)
    if not _await(lambda: _armed(pod, job), ARM_S):
        said = pod.log("guard").read_text(errors="replace").strip().splitlines() or ["nothing"]
        code = "" if guard is None or guard.poll() is None else f" (exit code {guard.returncode})"
        raise AgentError(f"{root}: the guard is not armed after {ARM_S:g} s{code}; last output: {said[-1]}")
    return _print({key: value for key, value in read_json(report(pod, "guard")).items() if key != "clocks"})


def stop(root: Path) -> int:
    """End all processes of the pod except a guard that is ending the pod itself; return 0 if none is left, else 1."""
    pod = PodFolder(root)
    job = read_job(pod)
    _take_turn(pod)
    patience_s = 0.0
    with tolerate_shortage(_warn, f"{root}: requesting a graceful stop"):
        patience_s = END_S
        if job.stays or not pod.verdict.exists():
            asked = ask_to_stop(pod, "stopped", "asked to stop", grace_s())
            patience_s += asked["grace_s"] + upload_s_after_stop(job, asked)
    _await(lambda: not _anyone(pod) or self_terminating_guard(pod) is not None, patience_s)
    guard = self_terminating_guard(pod)  # ending this guard would leave the pod running and billing
    survivors = retry_shortages(end_all)(job.token, PATIENCE_S, [guard.pid] if guard else [])
    # a guard with a key hides its memory, and so also its token
    hidden = live_process(pod, "guard") if job.needs_key else None
    if hidden and not self_terminating_guard(pod):
        send(hidden, signal.SIGKILL)
    if survivors:
        _warn(f"{root}: {describe_survivors(survivors)}")
    ending = verdict(job, "stopped", "asked to stop")
    with tolerate_shortage(_warn, f"{root}: writing the verdict"):
        ending = write_missing_verdict(pod, ending)
    pids = [one.pid for one in survivors]
    return _print({"stopped": not pids, "survivors": pids, "verdict": ending}, 1 if pids else 0)


def status(root: Path) -> int:
    pod = PodFolder(root)
    document: Dict[str, Any] = {
        role: {"alive": is_held(lock(pod, role)), **_said(report(pod, role))} for role in ("guard", "agent")
    }
    if clocks := document["guard"].get("clocks"):  # measured here, because the reader's clock may differ
        document["guard"]["age_s"] = gap_s(Clocks(**clocks), read_clocks())
    document["progress"] = _said(pod.progress) or None
    document["stop"] = _said(stop_file(pod)) or None
    document["verdict"] = _said(pod.verdict) or None
    return _print(document)


def _said(path: Path) -> Dict[str, Any]:
    """Return the content of a report. Raises AgentError if a program of the job has overwritten the file."""
    try:
        return read_json(path)
    except (ValueError, TypeError) as error:
        raise AgentError(f"{path} cannot be read: {error}") from error


def _begin_anew(pod: PodFolder, job: Job) -> None:
    """Archive the last verdict and end processes of an earlier pod in this folder; called while no guard runs."""
    before = read_json(report(pod, "guard"))
    if before and before["token"] != job.token:
        end_all(before["token"], PATIENCE_S)
    elif before and job.limits.micro_usd_per_hour == 0:
        # A free machine does not use up the limit while idle; a rented machine keeps billing.
        write_json(report(pod, "guard"), {**before, "clocks": None})
    archive_verdict(pod)
    stop_file(pod).unlink(missing_ok=True)
    attempt_file(pod).unlink(missing_ok=True)  # a second start runs the step again


def _take_turn(pod: PodFolder) -> None:
    if acquire_lock(lock(pod, "command"), wait_s=grace_s() + 2 * END_S) is None:
        raise AgentError(f"{pod.root}: another start or stop of this pod is still in progress")


def _anyone(pod: PodFolder) -> bool:
    return is_held(lock(pod, "guard")) or is_held(lock(pod, "agent"))


def _armed(pod: PodFolder, job: Job) -> bool:
    """Return whether the guard of this pod is armed.

    The guard must be alive and working if there is work; an existing verdict of a very short job also counts.
    """
    lives = live_process(pod, "guard") is not None  # checked first: a live guard has written its report
    said = read_json(report(pod, "guard"))
    is_ours = lives and said.get("token") == job.token
    return is_ours and said.get("holds", False) is (job.kind == "hold") or pod.verdict.exists()


def _holds(pod: PodFolder, job: Job) -> bool:
    """Return whether the guard of this pod is idle and holds the pod."""
    lives = live_process(pod, "guard") is not None
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
