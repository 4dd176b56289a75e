"""Schedule of many runs on few pods: the runs of a pod's queue run in sequence, the queues in parallel. Pure.

The input is a run-time estimate per run and the names of the pods; the output is one queue per pod.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lane:
    pod: str
    runs: tuple[str, ...]  # in execution order
    estimate_s: float
    host: str = ""  # own machine of the lane, if any
    devices: str = ""  # GPUs of the machine, such as `0,1`; other lanes use the rest


@dataclass(frozen=True)
class TrialSlot:
    """Machine, or some GPUs of a machine, for a single run at a time."""

    name: str
    host: str = ""
    devices: str = ""


def split(machine: TrialSlot, num_gpus: int, each: int) -> list[TrialSlot]:
    """Split a machine with `num_gpus` GPUs into parts of `each` GPUs for parallel runs.

    Returns the whole machine when only a single part fits, or `each` is 0.
    """
    if not each or num_gpus < 2 * each:
        return [machine]
    parts = [",".join(map(str, range(first, first + each))) for first in range(0, num_gpus - each + 1, each)]
    return [TrialSlot(f"{machine.name} device {part}", machine.host, part) for part in parts]


def pack(estimates_s: Mapping[str, float], pods: Sequence[str], placed: Mapping[str, str]) -> list[Lane]:
    """Return one queue per pod; a queue may be empty.

    A run in `placed` stays on the same pod; other runs go to the pod with the shortest queue in estimated time. The
    runs of a queue keep their order. With equal estimates, runs are distributed round-robin.
    """
    waiting: dict[str, list[str]] = {pod: [] for pod in pods}
    for run in estimates_s:
        if placed.get(run) in waiting:
            waiting[placed[run]].append(run)

    def load(pod: str) -> tuple[float, int]:
        return sum(estimates_s[run] for run in waiting[pod]), len(waiting[pod])

    for run in estimates_s:
        if placed.get(run) not in waiting:
            waiting[min(pods, key=load)].append(run)
    order = {run: number for number, run in enumerate(estimates_s)}
    return [Lane(pod, tuple(sorted(runs, key=order.__getitem__)), load(pod)[0]) for pod, runs in waiting.items()]
