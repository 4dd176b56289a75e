"""The schedule of many runs on a few pods: each pod has a queue, whose runs follow one another; queues run in parallel.

In: runs with estimates, names of pods. Out: queues. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lane:
    pod: str
    runs: tuple[str, ...]  # in the order in which they go
    estimate_s: float
    host: str = ""  # the machine, where it is one's own
    devices: str = ""  # GPUs of that machine, such as `0,1`: other lanes have the rest


@dataclass(frozen=True)
class Berth:
    """A machine, or some of its GPUs, on which one run at a time can be."""

    name: str
    host: str = ""
    devices: str = ""


def split(machine: Berth, num_gpus: int, each: int) -> list[Berth]:
    """Return the parts of a machine of `num_gpus` GPUs on which runs that take `each` go side by side.

    It is one part where only one fits, or where no GPU is asked for.
    """
    if not each or num_gpus < 2 * each:
        return [machine]
    parts = [",".join(map(str, range(first, first + each))) for first in range(0, num_gpus - each + 1, each)]
    return [Berth(f"{machine.name} device {part}", machine.host, part) for part in parts]


def pack(estimates_s: Mapping[str, float], pods: Sequence[str], placed: Mapping[str, str]) -> list[Lane]:
    """Return one queue per pod, perhaps without a run.

    A run of `placed` goes where it was, any other where least waits. The runs of a queue keep their order. With equal
    estimates, runs are dealt out like cards.
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
