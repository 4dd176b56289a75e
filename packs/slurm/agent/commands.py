"""Commands `start`, `stop` and `status` of a run in Slurm; each runs on a login node and prints a JSON document.

A run is a single Slurm job over all nodes. The job is named after the token of node 0 and can be found without a job
number. Only Slurm decides whether a run is alive, never a lock: some cluster file systems do not share locks between
machines. Every command is safe to repeat.
"""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

from infra.agent.execution.progress import Progress, Redactor
from infra.agent.job import Job, PodFolder
from infra.agent.state import (
    AgentError,
    acquire_lock,
    archive_verdict,
    ask_to_stop,
    attempt_file,
    grace_s,
    lock,
    read_job,
    read_json,
    report,
    stop_file,
    try_write_json,
    upload_s_after_stop,
    verdict,
    write_missing_verdict,
)
from packs.slurm.agent import queue

END_S = 30.0
KILL_S = 120.0  # time limit for Slurm to end a cancelled job
POLL_S = 1.0
PATIENT_S = 15.0  # seconds between queries about a waiting job
QUEUE = "queue"  # step shown in the progress until the work begins
LOG = "slurm"  # log of Slurm itself and of the program that starts the guard


def options_file(pod: PodFolder) -> Path:
    """Return the file with sbatch's options, {"options": [...]}, written by the provider when it creates the pod."""
    return pod.state / "sbatch.json"


def node_folder(root: Path, rank: int) -> PodFolder:
    """Return the folder of node `rank` of the run; `root` is the folder of node 0."""
    return PodFolder(root.with_name(f"{root.name}.{rank}") if rank else root)


def leader_of(pod: PodFolder, job: Job) -> PodFolder:
    """Return the folder of node 0 of the same run."""
    return PodFolder(pod.root.with_name(job.group.run)) if job.group.rank else pod


def start(root: Path) -> int:
    """Submit the job unless Slurm already has the job; print its number.

    Only node 0 submits, for all nodes; on other nodes the command prints the token and does nothing more. A job that is
    still stopping is awaited first. Raises AgentError when the wait times out.
    """
    pod = PodFolder(root)
    job = read_job(pod)
    if job.group.rank:
        return _print({"token": job.token})
    _take_turn(pod)
    found = queue.newest(job.token)
    if queue.lives(found) and (pod.verdict.exists() or stop_file(pod).exists()):
        if not _await(
            lambda: not queue.lives(queue.newest(job.token)), grace_s() + upload_s_after_stop(job, {}) + KILL_S
        ):
            raise AgentError(
                f"{root}: Slurm job {found['job']} is still ending; wait for the end of the job, or: scancel "
                f"{found['job']}"
            )
        found = {}
    if not queue.lives(found):
        for rank in range(len(job.group.addresses) or 1):
            _put_away(node_folder(root, rank))
        found = {"job": submit(pod, job)}
        _tell_queued(pod, job, found["job"])
    return _print({"token": job.token, "job": found["job"]})


def _tell_queued(pod: PodFolder, job: Job, number: str) -> None:
    """Record the wait in Slurm's queue as progress; the agent overwrites the progress when work begins."""
    progress = Progress(pod, job, [QUEUE], Redactor({}))
    progress.begin(QUEUE)
    progress.add_records(QUEUE, [{"kind": "note", "at": time.time(), "text": f"job {number} waits in Slurm's queue"}])
    progress.write()


def submit(pod: PodFolder, job: Job) -> str:
    """Submit the job with sbatch and return the job number. Raises QueueError with sbatch's message."""
    nodes = len(job.group.addresses) or 1
    pod.logs.mkdir(parents=True, exist_ok=True)
    options: List[str] = read_json(options_file(pod)).get("options", [])
    own = [
        "--parsable",
        f"--job-name={job.token}",
        f"--comment=slipway {job.run}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--requeue",
        "--open-mode=append",
        f"--output={pod.log(LOG)}",
        f"--chdir={pod.root}",
        "--signal=TERM@120",
        "--export=ALL",
    ]
    said = queue.call(["sbatch", *own, *options], script(pod, nodes))
    return said.strip().splitlines()[-1].partition(";")[0]


def script(pod: PodFolder, nodes: int) -> str:
    """Return the batch script: a single srun step over all nodes.

    Slurm sends the warning signal before a preemption only to steps.
    """
    python, folder = shlex.quote(sys.executable), shlex.quote(str(pod.root))
    step = f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --mpi=none --wait=0 --kill-on-bad-exit=0"
    return "\n".join(
        [
            "#!/bin/sh",
            f"export PYTHONPATH={shlex.quote(str(pod.code))}",
            "cpus=${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}",
            f"exec srun {step} $cpus {python} -m packs.slurm.agent run {folder}",
            "",
        ]
    )


def stop(root: Path) -> int:
    """End all processes of the run; return 0 when Slurm lists no job of the run any more, else 1."""
    pod = PodFolder(root)
    job = read_job(pod)
    leader = leader_of(pod, job)
    try:
        name = read_job(leader).token
    except AgentError:  # the folder of node 0 is already deleted
        name = job.token
    _take_turn(pod)
    found = queue.newest(name)
    if not pod.verdict.exists() and queue.lives(found):
        asked = ask_to_stop(pod, "stopped", "asked to stop", grace_s())
        if found["state"] not in queue.WAITING:
            patience_s = float(asked["grace_s"]) + upload_s_after_stop(job, asked) + END_S
            _await(lambda: not queue.lives(queue.newest(name)), patience_s)
    left = queue.cancel(name)["jobs"]
    if left and _await(lambda: not queue.cancel(name)["jobs"], KILL_S):
        left = []
    ending = write_missing_verdict(pod, verdict(job, "stopped", "asked to stop"))
    survivors = [one["job"] for one in left]
    if survivors:
        print(f"{root}: Slurm still has job {', '.join(survivors)} ({left[0]['state']})", file=sys.stderr)
    return _print({"stopped": not survivors, "survivors": survivors, "verdict": ending}, 1 if survivors else 0)


def status(root: Path) -> int:
    """Print the state of the run as a JSON document.

    Guard and agent count as alive while Slurm has the job, including the time in the queue.
    """
    pod = PodFolder(root)
    job = read_job(pod)
    leader = leader_of(pod, job)
    found = _known(pod, job.token if leader is pod else read_job(leader).token)
    document: Dict[str, Any] = {}
    for role in ("guard", "agent"):
        said = read_json(report(pod, role))
        known = said if said.get("token") == job.token else {}
        document[role] = {**known, "token": job.token, "alive": queue.lives(found)}
    document["progress"] = read_json(pod.progress) or None
    document["stop"] = read_json(stop_file(pod)) or None
    document["verdict"] = read_json(pod.verdict) or None
    document["queue"] = found or None
    return _print(document)


def _known(pod: PodFolder, name: str) -> Dict[str, Any]:
    """Return the newest job with this name, or {}; for a waiting job, reuse an answer younger than `PATIENT_S`."""
    place = pod.state / "queue.json"
    before = read_json(place)
    age_s = time.time() - before.get("asked_at", 0.0)
    if before.get("name") == name and before["state"] in queue.WAITING and 0 <= age_s < PATIENT_S:
        return before
    found: Dict[str, Any] = {**queue.newest(name)}
    if found:
        try_write_json(place, {**found, "asked_at": time.time()})
    return found


def _put_away(pod: PodFolder) -> None:
    """Archive the previous attempt's verdict, and delete the stop request, before a resume."""
    archive_verdict(pod)
    stop_file(pod).unlink(missing_ok=True)
    (pod.state / "queue.json").unlink(missing_ok=True)
    attempt_file(pod).unlink(missing_ok=True)


def _take_turn(pod: PodFolder) -> None:
    if acquire_lock(lock(pod, "command"), wait_s=grace_s() + KILL_S + END_S) is None:
        raise AgentError(f"{pod.root}: another start or stop is still in progress")


def _await(truth: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not truth():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _print(document: Dict[str, Any], code: int = 0) -> int:
    print(json.dumps(document), flush=True)
    return code
