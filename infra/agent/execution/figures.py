"""The utilization of a pod's machine: free disk, of each GPU its load and its memory, and what others take of its CPUs.

Nobody waits for nvidia-smi: on a broken driver it hangs where no signal reaches it. Each figure carries its time.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

LOOK_EVERY_S = 5.0
SHORTEST_S = 0.2  # shortest interval in which the kernel's ticks, of 10 ms, tell how busy the CPUs were
STAT = Path("/proc/stat")
WORDS = ("nvidia-smi", "--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")


class Figures:
    """The sampler of a machine's utilization, at intervals."""

    def __init__(self, folder: Path, devices: str = "") -> None:
        self.words = (*WORDS, f"--id={devices}") if devices else WORDS
        self.folder = folder
        self.known: Dict[str, Any] = {}
        self.looked_at = -LOOK_EVERY_S
        self.asked: "Optional[subprocess.Popen[str]]" = None
        self.has_gpus = shutil.which(WORDS[0]) is not None

    def look(self) -> Dict[str, Any]:
        """Return the latest figures: disk_free_bytes and disk_at; gpus and gpus_at where GPUs have answered."""
        if self.asked is not None and self.asked.poll() is not None:
            gpus = _gpus(self.asked)
            if gpus:
                self.known.update(gpus=gpus, gpus_at=time.time())
            self.asked = None
        if time.monotonic() - self.looked_at >= LOOK_EVERY_S:
            self.looked_at = time.monotonic()
            self.known.update(disk_free_bytes=shutil.disk_usage(self.folder).free, disk_at=time.time())
            if self.has_gpus and self.asked is None:
                self.asked = _ask(self.words)
        return self.known


class OtherLoad:
    """The share of this machine's CPUs that programs other than our own take, from one moment on.

    Our own are this process and those of its children that have ended: whoever asks has just waited for them.
    """

    def __init__(self) -> None:
        self.began = _cpu_times()

    def share(self) -> Optional[float]:
        """Return the share since then, 0 to 1; None where the system does not say, or within too short a time."""
        now = _cpu_times()
        if self.began is None or now is None:
            return None
        wall_s, busy_s, ours_s = (now[part] - self.began[part] for part in (0, 1, 2))
        if wall_s < SHORTEST_S or self.began[3] != now[3]:
            return None
        return min(1.0, max(0.0, busy_s - ours_s) / (wall_s * now[3]))


def _cpu_times() -> Optional[Tuple[float, float, float, int]]:
    """Return seconds: the clock, of work of the CPUs that we may use, of our own; and how many CPUs that are."""
    try:
        ours = {"cpu%d" % number for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        # user, nice, system, irq, softirq, steal; what guests take is in user
        busy = [
            sum(int(words[column]) for column in (1, 2, 3, 6, 7, 8)) for words in lines if words and words[0] in ours
        ]
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux, or a system that hides it
        return None
    spent = os.times()
    own_s = spent.user + spent.system + spent.children_user + spent.children_system
    return (time.monotonic(), sum(busy) * tick_s, own_s, len(busy)) if busy else None


def _ask(words: Sequence[str]) -> "Optional[subprocess.Popen[str]]":
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:  # it is gone, or cannot be run just now: the figures grow old, and their age is shown
        return None


def _gpus(asked: "subprocess.Popen[str]") -> List[Dict[str, Any]]:
    """Return the figures per GPU; None for one that it does not report. [] when there was no answer."""
    with asked:
        lines = asked.stdout.read().splitlines() if asked.stdout else []
    rows = [[cell.strip() for cell in line.rsplit(",", 3)] for line in lines]
    if asked.returncode != 0 or any(len(row) != 4 for row in rows):
        return []
    return [
        {"name": row[0], "percent": _number(row[1]), "used_bytes": _bytes(row[2]), "memory_bytes": _bytes(row[3])}
        for row in rows
    ]


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _bytes(mebibytes: str) -> Optional[int]:
    number = _number(mebibytes)
    return None if number is None else number << 20
