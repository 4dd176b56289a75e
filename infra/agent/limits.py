"""The limits of a pod: maximum lifetime, time used so far, and other reasons to end a pod.

Limits are durations on CLOCK_BOOTTIME, which includes the time that the machine sleeps. The wall clock serves only for
the gap between two guards, where the larger value counts: errors may only overestimate the time used.
"""

import math
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from infra.agent.amounts import duration
from infra.agent.job import Job, Limits
from infra.agent.process import boot_id

ASK_GPU_EVERY_S = 30.0
FINISH_BY = "SLIPWAY_FINISH_BY"  # variable of a job: the end of all work, in UTC epoch seconds
SAVE_AT = 0.8  # share of a limit at which a training saves a checkpoint and continues


@dataclass(frozen=True)
class Clocks:
    """A reading of the boot clock and the wall clock, stored with the time elapsed at the reading."""

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
    """Return the seconds since boot, excluding sleep."""
    # CLOCK_MONOTONIC includes sleep on macOS, but not on Linux.
    return time.clock_gettime(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))


def gap_s(before: Clocks, now: Clocks) -> float:
    """Return the seconds between two readings, also across a reboot; never negative."""
    since_boot = now.boot_s - before.boot_s if now.boot_id == before.boot_id else now.boot_s
    return max(since_boot, now.wall_s - before.wall_s, 0.0)


def hard_limit_s(limits: Limits) -> Optional[float]:
    """Return the lower of the time limit and the spend limit converted to seconds, or None without a limit."""
    ends = [] if limits.time_s is None else [limits.time_s]
    if limits.spend_micro_usd is not None and limits.micro_usd_per_hour > 0:
        ends.append(limits.spend_micro_usd * 3600 / limits.micro_usd_per_hour)
    return min(ends) if ends else None


def limits_until(limits: Limits, job: Job, now: Clocks, scale: float = 1.0, elapsed_s: float = 0.0) -> Limits:
    """Return the limits with `time_s` at most `elapsed_s` plus the seconds until FINISH_BY of the job."""
    left_s = (float(job.environ.get(FINISH_BY) or math.inf) - now.wall_s) * scale
    time_s = min(elapsed_s + left_s, math.inf if limits.time_s is None else limits.time_s)
    return replace(limits, time_s=None if time_s == math.inf else max(0.0, time_s))


def ending_in_time(job: Job, elapsed_s: float) -> Job:
    """Return the job with the limits for a pod that ends before FINISH_BY, also if the pod has waited in a queue."""
    return replace(job, limits=limits_until(job.limits, job, read_clocks(), job.clock_scale, elapsed_s))


def limit_words(limits: Limits) -> str:
    """Return the limit that ends the pod first, as text: a spend limit in dollars, a time limit as a duration."""
    limit_s = hard_limit_s(limits)
    if limit_s == limits.time_s or limits.spend_micro_usd is None:
        return f"limit of {duration(limit_s)}"
    return f"spend limit of {limits.spend_micro_usd / 1e6:,.2f} USD ({duration(limit_s)} of this pod)"


def leads_s(limit_s: float) -> Tuple[float, float]:
    """Return the seconds before the limit at which the step must save, and at which only uploads continue."""
    return (900.0, 300.0) if limit_s >= 7200 else (0.12 * limit_s, 0.04 * limit_s)


def is_save_due(elapsed_s: float, limit_s: Optional[float]) -> bool:
    """Return whether the used share of the limit requires a checkpoint before the training continues."""
    return limit_s is not None and elapsed_s >= SAVE_AT * limit_s


def upload_allowance_s(job: Job, said: Dict[str, Any]) -> float:
    """Return the real seconds that the last uploads may take when the job ends without a stop request.

    The value is 90 % of the save lead before the limit, and never extends beyond the limit; the rest is for the
    verdict. `said` is the guard's report.
    """
    elapsed_s = 0.0
    if said.get("token") == job.token:
        elapsed_s = said["elapsed_s"]
        if said["clocks"]:
            elapsed_s += gap_s(Clocks(**said["clocks"]), read_clocks()) * job.clock_scale
    limit_s = hard_limit_s(ending_in_time(job, elapsed_s).limits)
    if limit_s is None:
        return leads_s(math.inf)[0] / job.clock_scale
    return 0.9 * max(0.0, min(leads_s(limit_s)[0], limit_s - elapsed_s)) / job.clock_scale


def spent_micro_usd(elapsed_s: float, limits: Limits) -> int:
    return math.ceil(elapsed_s * limits.micro_usd_per_hour / 3600)


def full_disk(folder: Path, limits: Limits) -> str:
    """Return the reason to stop the work, or "" while at least the reserve is free."""
    free = shutil.disk_usage(folder).free
    if free >= limits.reserve_bytes:
        return ""
    return f"disk nearly full: {free / 1e9:.2f} GB free, {limits.reserve_bytes / 1e9:.2f} GB needed"


class IdleGpu:
    """A detector for GPUs that stay idle for `idle_gpu_s` seconds of the job's clock. Unknown utilization is not idle.

    The detector never waits for nvidia-smi: on a broken driver nvidia-smi hangs uninterruptibly, and the other limits
    must still be enforced.
    """

    def __init__(self, limits: Limits, scale: float, devices: str = "") -> None:
        self.devices = devices
        self.limit_s = limits.idle_gpu_s
        self.scale = scale
        self.busy_at = self.asked_at = boottime_s()
        self.asking: Optional[subprocess.Popen[str]] = None
        self.idle_s: Optional[float] = None  # idle seconds at the last sample; None without a sample

    def stop_reason(self) -> str:
        """Return the reason to stop the work, or ""."""
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
    """Start nvidia-smi for `devices` ("" = all GPUs); return None when nvidia-smi cannot be started."""
    words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    words += [f"--id={devices}"] if devices else []
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None


def _percents(asked: "subprocess.Popen[str]") -> List[int]:
    """Return the utilization of every GPU in percent, or [] without a valid answer."""
    with asked:
        lines = asked.stdout.read().split() if asked.stdout else []
    return [int(line) for line in lines] if all(line.isdigit() for line in lines) else []
