"""The program that Slurm runs on every node of a job: it finds its folder and the other nodes, and becomes the guard.

    which node am I -> what the attempt before has left -> where the others are -> guard

Slurm begins a job anew that is requeued or preempted, on whatever nodes are free then, in the same folders: the agent
goes on from the newest checkpoint. Before that its processes are told (SIGTERM), save, and leave without a verdict.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TypeVar

from infra.agent import meet
from infra.agent.job import Job, NodeGroup, PodFolder, write_durably
from infra.agent.lifecycle import guard
from infra.agent.process import boot_id
from infra.agent.state import (
    ENGINE,
    LEFT,
    AgentError,
    attempt_file,
    is_held,
    lock,
    read_job,
    read_json,
    report,
    say,
    stop_file,
    write_json,
)
from packs.slurm.agent import queue
from packs.slurm.agent.commands import node_folder

T = TypeVar("T")

WAIT_S = 300.0  # time for the words of the other nodes, and for the last attempt's processes to go
CALL_S = 8.0  # time for which the nodes try to reach each other
POLL_S = 0.2


def run(root: Path) -> int:
    """Guard this node of the run whose node 0 has `root`: 0 when there is nothing left to do here."""
    rank, nodes = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    attempt = f"{os.environ.get('SLURM_JOB_ID', '0')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    leader, pod = PodFolder(root), node_folder(root, rank)
    os.environ[ENGINE] = "slurm"
    if os.environ.get("SLURM_CPUS_PER_TASK"):
        os.environ.setdefault("OMP_NUM_THREADS", os.environ["SLURM_CPUS_PER_TASK"])
    say(f"job {attempt} of Slurm: node {rank} of {nodes} on {os.environ.get('SLURMD_NODENAME', 'this machine')}")
    if leader.verdict.exists():
        say("the run has its verdict already")
        return 0
    job = _job_of(pod, read_job(leader))
    tidy(pod, job)
    if nodes > 1:
        job = introduce(leader, pod, job, attempt, nodes)
    code = guard.guard(pod.root)
    if not pod.verdict.exists() and rank == 0:
        _go_on_later()
    return code


def tidy(pod: PodFolder, job: Job) -> None:
    """Remove the leftovers of an earlier attempt: its request to leave, and the time when nobody worked."""
    for role in ("guard", "agent"):
        path = lock(pod, role)
        _await(lambda: not is_held(path) or None, f"the {role} of an earlier attempt is still there")  # noqa: B023
    if read_json(stop_file(pod)).get("state") == LEFT:
        stop_file(pod).unlink(missing_ok=True)
    attempt_file(pod).unlink(missing_ok=True)
    before = read_json(report(pod, "guard"))
    if before and before.get("token") == job.token:
        write_json(report(pod, "guard"), {**before, "clocks": None})


def introduce(leader: PodFolder, pod: PodFolder, job: Job, attempt: str, nodes: int) -> Job:
    """Return the job with the addresses of all nodes, which they tell each other by files of their common folder."""
    rank, folder = job.group.rank, leader.state / "meetings" / attempt
    ports = meet.free_ports(2)
    own = {"boot_id": boot_id(), "here": meet.look("here")["addresses"], "there": meet.look("there")["addresses"],
           "ports": ports}  # fmt: skip
    said = _exchange(folder, "look", rank, nodes, own)
    if len({one["boot_id"] for one in said}) == 1:  # several nodes of one machine, as on a test cluster
        chosen = [next(iter(one["here"].items())) for one in said]
    else:
        plan = [{"addresses": list(one["there"]), "port": one["ports"][0]} for one in said]
        heard = meet.Meeting({"rank": rank, "key": job.group.key, "within_s": CALL_S, "nodes": plan}).hold()
        chosen = choose(said, _exchange(folder, "reached", rank, nodes, heard))
    port, words_port = said[0]["ports"]
    group = NodeGroup(job.group.run, rank, tuple(one for one, _ in chosen), chosen[rank][1], port, words_port,
                      job.group.key)  # fmt: skip
    job = replace(job, group=group)
    write_durably(pod.job, job.to_json(), 0o600)
    return job


def choose(said: List[Dict[str, Any]], heard: List[Dict[str, Any]]) -> List[Any]:
    """Return (address, interface) of every node, one that all others have reached. Raises AgentError."""
    chosen = []
    for rank, one in enumerate(said):
        others = [other["reached"].get(str(rank), []) for index, other in enumerate(heard) if index != rank]
        common = [(address, name) for address, name in one["there"].items() if all(address in seen for seen in others)]
        if not common:
            raise AgentError(f"node {rank} ({', '.join(one['there'])}) cannot be reached by all other nodes of the job")
        chosen.append(common[0])
    return chosen


def _exchange(folder: Path, what: str, rank: int, nodes: int, own: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Leave a word for the other nodes, and return those of all, by rank. Raises AgentError when one stays away."""
    write_durably(folder / f"{what}.{rank}.json", json.dumps(own))

    def words() -> Optional[List[Dict[str, Any]]]:
        os.listdir(folder)  # a network file system looks again
        found = [read_json(folder / f"{what}.{one}.json") for one in range(nodes)]
        return found if all(found) else None

    return _await(words, "not all nodes of the job have come")


def _job_of(pod: PodFolder, first: Job) -> Job:
    """Return the job of this node once it was handed over, which may be after Slurm has begun."""

    def found() -> Optional[Job]:
        job = read_job(pod) if pod.job.exists() else None
        return job if job and job.group.key == first.group.key else None

    return _await(found, f"{pod.job} is not there")


def _go_on_later() -> None:
    """Ask Slurm to begin the job anew, where it would not do so by itself: its time is up, or a node was lost."""
    number = os.environ.get("SLURM_JOB_ID", "")
    try:
        said = queue.rows(queue.call(["squeue", "--noheader", "-j", number, "-o", queue.JOB_FORMAT]), queue.JOB)
        state = said[0]["state"] if said else "unknown"
        say(f"exited without a verdict; Slurm calls the job {state}")
        if state == "RUNNING":
            queue.call(["scontrol", "requeue", number])
    except queue.QueueError as error:  # its keeper submits it anew
        say(f"requeueing job {number}: {error}")


def _await(truth: Callable[[], Optional[T]], problem: str) -> T:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = truth()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise AgentError(f"{problem} after {WAIT_S:g} s")
        time.sleep(POLL_S)
