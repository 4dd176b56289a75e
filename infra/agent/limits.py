"""The limits of a pod: how long it may live, how long it has lived, and what else ends it.

Limits are durations. Time is CLOCK_BOOTTIME, which counts while the machine sleeps; the wall clock is
asked only about the gap between two guards, where the larger of both counts: errors may only over-estimate.
"""

import math
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from infra.agent.amounts import duration
from infra.agent.job import Job, Limits
from infra.agent.process import boot_id

ASK_GPU_EVERY_S = 30.0
SAVE_AT = 0.8  # share of a limit at which a training saves, and goes on


@dataclass(frozen=True)
class Clocks:
    """One reading of both clocks; saved with what had elapsed by then."""

    boot_id: str
    boot_s: float
    wall_s: float


def read_clocks() -> Clocks:
    return Clocks(boot_id(), boottime_s(), time.time())


def boottime_s() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def awake_s() -> float:
    """Return the seconds of this boot, without those for which the machine has slept."""
    # On macOS CLOCK_MONOTONIC counts sleep, on Linux it does not.
    return time.clock_gettime(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))


def gap_s(before: Clocks, now: Clocks) -> float:
    """Return the seconds between two readings, perhaps with a reboot between them; never negative."""
    since_boot = now.boot_s - before.boot_s if now.boot_id == before.boot_id else now.boot_s
    return max(since_boot, now.wall_s - before.wall_s, 0.0)


def hard_limit_s(limits: Limits) -> Optional[float]:
    """Return the earlier of the time limit and the time that the money lasts; None when neither is set."""
    ends = [] if limits.time_s is None else [limits.time_s]
    if limits.spend_micro_usd is not None and limits.micro_usd_per_hour > 0:
        ends.append(limits.spend_micro_usd * 3600 / limits.micro_usd_per_hour)
    return min(ends) if ends else None


def leads_s(limit_s: float) -> Tuple[float, float]:
    """Return how long before the limit the step is asked to save, and how long before it only uploads go on."""
    return (900.0, 300.0) if limit_s >= 7200 else (0.12 * limit_s, 0.04 * limit_s)


def is_save_due(elapsed_s: float, limit_s: Optional[float]) -> bool:
    """Return whether so much of the limit is used that a training is to save before it goes on."""
    return limit_s is not None and elapsed_s >= SAVE_AT * limit_s


def carry_s(job: Job, said: Dict[str, Any]) -> float:
    """Return the seconds of this machine that the last uploads may take when nobody asked for the end.

    As long as a save before the limit may take, and never beyond the limit; a tenth is left for the verdict. `said` is
    the guard's report.
    """
    limit_s = hard_limit_s(job.limits)
    if limit_s is None:
        return leads_s(math.inf)[0] / job.clock_scale
    elapsed_s = 0.0
    if said.get("token") == job.token:
        elapsed_s = said["elapsed_s"]
        if said["clocks"]:
            elapsed_s += gap_s(Clocks(**said["clocks"]), read_clocks()) * job.clock_scale
    return 0.9 * max(0.0, min(leads_s(limit_s)[0], limit_s - elapsed_s)) / job.clock_scale


def spent_micro_usd(elapsed_s: float, limits: Limits) -> int:
    return math.ceil(elapsed_s * limits.micro_usd_per_hour / 3600)


def full_disk(folder: Path, limits: Limits) -> str:
    """Return why work must stop, or "" while more than the reserve is free."""
    free = shutil.disk_usage(folder).free
    if free >= limits.reserve_bytes:
        return ""
    return f"disk nearly full: {free / 1e9:.2f} GB free, {limits.reserve_bytes / 1e9:.2f} GB needed"


class IdleGpu:
    """A watch that notices when no GPU has worked for `idle_gpu_s` of the job's clock. What is unknown is not idle.

    nvidia-smi is never waited for: on a broken driver it hangs where no signal reaches it, and the limits
    must hold there too.
    """

    def __init__(self, limits: Limits, scale: float, devices: str = "") -> None:
        self.devices = devices
        self.limit_s = limits.idle_gpu_s
        self.scale = scale
        self.busy_at = self.asked_at = boottime_s()
        self.asking: Optional[subprocess.Popen[str]] = None
        self.idle_s: Optional[float] = None  # idle seconds at the last answer; None = there was none

    def reason(self) -> str:
        """Return why work must stop, or ""."""
        if self.limit_s is None:
            return ""
        now = boottime_s()
        if self.asking is None:
            if now - self.asked_at >= min(ASK_GPU_EVERY_S, self.limit_s / self.scale / 4):
                self.asked_at = now
                self.asking = _ask_gpus(self.devices)
        elif self.asking.poll() is not None:
            percents = _percents(self.asking)
            self.asking = None
            if not percents or any(percents):
                self.busy_at = now
            self.idle_s = (now - self.busy_at) * self.scale if percents else None
            if self.idle_s is not None and self.idle_s >= self.limit_s:
                return f"{len(percents)} GPUs idle for {duration(self.idle_s)}"
        return ""


def _ask_gpus(devices: str) -> Optional["subprocess.Popen[str]"]:
    """Start nvidia-smi; return None where there is none. `devices`: the GPUs that it is asked for, "" = all."""
    words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    words += [f"--id={devices}"] if devices else []
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None


def _percents(asked: "subprocess.Popen[str]") -> List[int]:
    """Return the utilization of every GPU; [] when there was no answer."""
    with asked:
        lines = asked.stdout.read().split() if asked.stdout else []
    return [int(line) for line in lines] if all(line.isdigit() for line in lines) else []
