"""Program started by Slurm on every node of a job: finds the node's folder and the other nodes, then runs the guard.

    rank of this node -> cleanup after the previous attempt -> addresses of the other nodes -> guard

Slurm restarts a requeued or preempted job on any free nodes, in the same folders: the agent resumes from the newest
checkpoint. Before a preemption Slurm sends SIGTERM; the trainer saves a checkpoint and exits without a verdict.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, TypeVar

from infra.agent import peer_addresses
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

WAIT_S = 300.0  # time for the messages of the other nodes, and for the processes of the previous attempt to end
CALL_S = 8.0  # time for which the nodes try to reach each other
POLL_S = 0.2


def run(root: Path) -> int:
    """Guard this node of the run whose node 0 has the folder `root`; return the guard's exit code.

    Returns 0 at once when the run already has a verdict. Node 0 requeues the job when the guard exits without a
    verdict.
    """
    rank, nodes = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_NTASKS", "1"))
    attempt = f"{os.environ.get('SLURM_JOB_ID', '0')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    leader, pod = PodFolder(root), node_folder(root, rank)
    os.environ[ENGINE] = "slurm"
    if os.environ.get("SLURM_CPUS_PER_TASK"):
        os.environ.setdefault("OMP_NUM_THREADS", os.environ["SLURM_CPUS_PER_TASK"])
    say(f"job {attempt} of Slurm: node {rank} of {nodes} on {os.environ.get('SLURMD_NODENAME', 'this machine')}")
    if leader.verdict.exists():
        say("the run already has a verdict")
        return 0
    job = _job_of(pod, read_job(leader))
    tidy(pod, job)
    if nodes > 1:
        job = exchange_addresses(leader, pod, job, attempt, nodes)
    code = guard.guard(pod.root)
    if not pod.verdict.exists() and rank == 0:
        _go_on_later()
    return code


def tidy(pod: PodFolder, job: Job) -> None:
    """Remove the state of a previous attempt: the request to leave, the attempt file, and the guard's clocks.

    Without the clocks, the time between two attempts is not counted. Raises AgentError when a process of the previous
    attempt still runs after `WAIT_S` seconds.
    """
    for role in ("guard", "agent"):
        path = lock(pod, role)
        _await(lambda: not is_held(path) or None, f"the {role} of an earlier attempt still runs")  # noqa: B023
    if read_json(stop_file(pod)).get("state") == LEFT:
        stop_file(pod).unlink(missing_ok=True)
    attempt_file(pod).unlink(missing_ok=True)
    before = read_json(report(pod, "guard"))
    if before and before.get("token") == job.token:
        write_json(report(pod, "guard"), {**before, "clocks": None})


def exchange_addresses(leader: PodFolder, pod: PodFolder, job: Job, attempt: str, nodes: int) -> Job:
    """Return the job with the addresses of all nodes, exchanged through files in the folder of node 0.

    leader: the folder of node 0. Also writes the job to the node's `job.json`. Raises AgentError when a node is missing
    or unreachable.
    """
    rank, folder = job.group.rank, leader.state / "meetings" / attempt
    ports = peer_addresses.free_ports(2)
    own = {
        "boot_id": boot_id(),
        "here": peer_addresses.find_addresses("here")["addresses"],
        "there": peer_addresses.find_addresses("there")["addresses"],
        "ports": ports,
    }
    said = _exchange(folder, "look", rank, nodes, own)
    if len({one["boot_id"] for one in said}) == 1:  # several nodes on the same machine, as on a test cluster
        chosen = [next(iter(one["here"].items())) for one in said]
    else:
        plan = [{"addresses": list(one["there"]), "port": one["ports"][0]} for one in said]
        heard = peer_addresses.ReachabilityTest(
            {"rank": rank, "key": job.group.key, "within_s": CALL_S, "nodes": plan}
        ).hold()
        chosen = choose(said, _exchange(folder, "reached", rank, nodes, heard))
    port, words_port = said[0]["ports"]
    group = NodeGroup(
        job.group.run, rank, tuple(one for one, _ in chosen), chosen[rank][1], port, words_port, job.group.key
    )
    job = replace(job, group=group)
    write_durably(pod.job, job.to_json(), 0o600)
    return job


def choose(said: List[Dict[str, Any]], heard: List[Dict[str, Any]]) -> List[Any]:
    """Return for each node the first (address, interface) reached by all other nodes. Raises AgentError."""
    chosen = []
    for rank, one in enumerate(said):
        others = [other["reached"].get(str(rank), []) for index, other in enumerate(heard) if index != rank]
        common = [(address, name) for address, name in one["there"].items() if all(address in seen for seen in others)]
        if not common:
            raise AgentError(f"node {rank} ({', '.join(one['there'])}) cannot be reached by all other nodes of the job")
        chosen.append(common[0])
    return chosen


def _exchange(folder: Path, what: str, rank: int, nodes: int, own: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Write this node's message and return the messages of all nodes, by rank. Raises AgentError after a timeout."""
    write_durably(folder / f"{what}.{rank}.json", json.dumps(own))

    def words() -> Optional[List[Dict[str, Any]]]:
        os.listdir(folder)  # force a network file system to refresh the listing
        found = [read_json(folder / f"{what}.{one}.json") for one in range(nodes)]
        return found if all(found) else None

    return _await(words, "some nodes of the job have not started")


def _job_of(pod: PodFolder, first: Job) -> Job:
    """Wait for the job file of this node, which may arrive after Slurm has started, and return the job."""

    def found() -> Optional[Job]:
        job = read_job(pod) if pod.job.exists() else None
        return job if job and job.group.key == first.group.key else None

    return _await(found, f"{pod.job} is not there")


def _go_on_later() -> None:
    """Requeue the job if Slurm still calls the job running: after the time limit, or after the loss of a node.

    In other states Slurm restarts the job by itself.
    """
    number = os.environ.get("SLURM_JOB_ID", "")
    try:
        asked = ["squeue", "--noheader", "--all", "-j", number, "-o", queue.JOB_FORMAT]
        said = queue.rows(queue.call(asked), queue.JOB)
        state = said[0]["state"] if said else "unknown"
        say(f"exited without a verdict; the state of the job in Slurm is {state}")
        if state == "RUNNING":
            queue.call(["scontrol", "requeue", number])
    except queue.QueueError as error:  # the supervisor submits the job again
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
