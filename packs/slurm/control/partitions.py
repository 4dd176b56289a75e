"""Capabilities of a Slurm partition, and the sbatch options to request the capabilities. Pure.

rows of sinfo -> Nodes -> fit of a request and its GPU type -> sbatch's options
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.machines.survey import same_gpu
from infra.market import gpus
from infra.records import Offer, Request
from packs.slurm.agent import queue
from packs.slurm.control.inventory import Queue, SlurmCluster

SLACK_S = 300.0  # added to our limit for Slurm's time limit, so that the guard acts first
GONE_STATES = ("down", "drain", "drng", "fail", "maint", "unknown", "power", "reserved", "inval")
MIB = 1 << 20


@dataclass(frozen=True)
class Nodes:
    """Identical nodes of a partition. `up`: number of nodes, out of `count`, available for work now or later."""

    partition: str
    gres: tuple[tuple[str, int], ...]
    cpus: int
    memory_bytes: int
    count: int
    up: int


def options_of(cluster: SlurmCluster, request: Request, offer: Offer, limits: Limits) -> list[str]:
    """Return sbatch's options for a run: partition, account, QOS, GPUs, CPUs, memory and time limit."""
    known = cluster.queue(offer.instance_type) or Queue()
    options = [f"--partition={offer.instance_type}"]
    options += [f"--account={known.account}"] if known.account else []
    options += [f"--qos={known.qos}"] if known.qos else []
    if offer.num_gpus:
        kind = f"{offer.gpu}:" if offer.gpu else ""
        options.append(f"--gres=gpu:{kind}{offer.num_gpus}")
    if request.cpus:
        options.append(f"--cpus-per-task={request.cpus}")
    if request.memory_bytes:
        options.append(f"--mem={math.ceil(request.memory_bytes / MIB)}M")
    limit_s = hard_limit_s(limits)
    time_s = limit_s + SLACK_S if limit_s is not None else known.time_s
    if time_s is not None:
        options.append(f"--time={'UNLIMITED' if time_s == math.inf else max(1, math.ceil(time_s / 60))}")
    return [*options, *known.options]


def kinds_of(rows: Sequence[Mapping[str, str]]) -> list[Nodes]:
    """Group the rows of sinfo, one per node and partition, into kinds of identical nodes."""
    found: dict[tuple[str, tuple[tuple[str, int], ...], int, int], list[bool]] = {}
    for row in rows:
        cpus, memory = queue.number(row["cpus"]), queue.number(row["memory_mib"]) * MIB
        is_up = not any(row["state"].lower().rstrip("*~#!%$@^-").startswith(one) for one in GONE_STATES)
        is_up = is_up and not row["state"].endswith("*")  # sinfo's mark of an unresponsive node
        found.setdefault((row["partition"], gres_of(row["gres"]), cpus, memory), []).append(is_up)
    return [Nodes(*key, len(ups), sum(ups)) for key, ups in found.items()]


def gres_of(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `gpu:a100:4(S:0-1),gpu:2` into (type, number) pairs; the type is "" when the entry names none."""
    found = []
    for one in text.replace("(null)", "").split(","):
        parts = one.partition("(")[0].split(":")
        if parts[0] == "gpu" and parts[-1].isdigit():
            found.append((parts[1] if len(parts) > 2 else "", int(parts[-1])))
    return tuple(found)


def fit(kind: Nodes, request: Request) -> tuple[str, str]:
    """Return the reason why the nodes cannot run the request ("" if they can), and the GPU type to request."""
    gres = ""
    if request.num_gpus or request.gpu:
        wanted = [kind for kind, _ in gpus.read_set(request.gpu)] or [""]
        least = max(1, request.num_gpus)
        enough = sorted((name for name, number in kind.gres if number >= least), key=gpus.is_slice)  # whole GPUs first
        found = next((name for name in enough for asked in wanted if not asked or same_gpu(asked, name)), None)
        if found is None:
            has = ", ".join(f"{name or 'GPU'}:{number}" for name, number in kind.gres) or "no GPUs"
            return f"the nodes have {has}", ""
        gres = found
    if request.cpus > kind.cpus:
        return f"the nodes have {kind.cpus} CPUs", ""
    if request.memory_bytes > kind.memory_bytes:
        return f"the nodes have {kind.memory_bytes / 1e9:.0f} GB of memory", ""
    if request.nodes > kind.up:
        return f"{kind.up} of {kind.count} such nodes can get work; the request needs {request.nodes}", ""
    return "", gres


def state_of(job: Mapping[str, str]) -> tuple[str, str]:
    """Return the pod state for a Slurm job (`queued`, `running`, or "" for none or ended), and a description."""
    if not job:
        return "", ""
    number, state, reason = job["job"], job["state"], job["reason"]
    why = "" if reason in ("None", "") else f" ({reason})"
    if not queue.lives(job):
        return "", f"Slurm job {number} has ended: {state}{why}"
    if state in queue.WAITING:
        return "queued", f"Slurm job {number} waits in {job['partition']}{why}"
    return "running", f"Slurm job {number} on {job['at']}"
