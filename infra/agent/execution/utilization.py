"""Utilization of a pod's machine: free disk, load and memory per GPU, and CPU use by other programs.

No caller waits for nvidia-smi, because nvidia-smi hangs uninterruptibly on a broken driver. Each value has a timestamp.
The GPU history of a run is a log file with a line per minute.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from infra.agent import untrusted_json
from infra.agent.state import say

LOOK_EVERY_S = 5.0
KEEP_EVERY_S = 60.0
SHORTEST_S = 0.2  # shortest interval for CPU load, given the kernel's ticks of 10 ms
STAT = Path("/proc/stat")
WORDS = ("nvidia-smi", "--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")


class UtilizationSampler:
    """A sampler of the machine's utilization at regular intervals."""

    def __init__(self, folder: Path, devices: str = "", history: Optional[Path] = None) -> None:
        self.history = GpuHistory(history)
        self.words = (*WORDS, f"--id={devices}") if devices else WORDS
        self.folder = folder
        self.known: Dict[str, Any] = {}
        self.looked_at = -LOOK_EVERY_S
        self.asked: "Optional[subprocess.Popen[str]]" = None
        self.has_gpus = shutil.which(WORDS[0]) is not None

    def sample(self) -> Dict[str, Any]:
        """Return the latest values: disk_free_bytes and disk_at, and gpus and gpus_at if nvidia-smi has answered."""
        if self.asked is not None and self.asked.poll() is not None:
            gpus = _gpus(self.asked)
            if gpus:
                self.history.add(gpus)
                self.known.update(gpus=gpus, gpus_at=time.time())
            self.asked = None
        if time.monotonic() - self.looked_at >= LOOK_EVERY_S:
            self.looked_at = time.monotonic()
            self.known.update(disk_free_bytes=shutil.disk_usage(self.folder).free, disk_at=time.time())
            if self.has_gpus and self.asked is None:
                self.asked = _ask(self.words)
        return self.known


class GpuHistory:
    """Load and memory of the GPUs over the time of a run, including earlier agents.

    Each line of the file is JSON with `at`, and per GPU the peak memory in use since the previous line (`used_bytes`),
    the total memory (`memory_bytes`) and the mean load (`percent`); null for values not reported by the GPU.
    """

    def __init__(self, path: Optional[Path]) -> None:
        self.path = path
        self.seen: List[List[Dict[str, Any]]] = []  # samples since the last line
        self.kept_at = -KEEP_EVERY_S
        self.peaks: Dict[int, int] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for line in path.read_bytes().splitlines() if path else ():
                self._update_peaks([{"used_bytes": used} for used in untrusted_json.parse(line)["used_bytes"]])

    def add(self, gpus: List[Dict[str, Any]]) -> None:
        """Add a sample, and set `peak_bytes` of each GPU to the highest memory use of the run."""
        if self.seen and len(self.seen[-1]) != len(gpus):
            self.append_line()
        self.seen.append(gpus)
        self._update_peaks(gpus)
        for number, gpu in enumerate(gpus):
            gpu["peak_bytes"] = self.peaks.get(number)
        if time.monotonic() - self.kept_at >= KEEP_EVERY_S:
            self.append_line()

    def append_line(self) -> None:
        """Append a line with the samples since the last line."""
        if not self.seen or self.path is None:
            return
        rows = [[gpus[number] for gpus in self.seen] for number in range(len(self.seen[-1]))]
        line = {
            "at": round(time.time(), 3),
            "used_bytes": [max(_told(row, "used_bytes"), default=None) for row in rows],
            "memory_bytes": [row[-1]["memory_bytes"] for row in rows],
            "percent": [round(sum(told) / len(told), 1) if (told := _told(row, "percent")) else None for row in rows],
        }
        self.seen, self.kept_at = [], time.monotonic()
        try:
            with open(self.path, "a", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # a full disk leaves a gap
            say("could not write the figures of the GPUs: %s" % error)

    def _update_peaks(self, gpus: Sequence[Dict[str, Any]]) -> None:
        for number, gpu in enumerate(gpus):
            if gpu["used_bytes"] is not None:
                self.peaks[number] = max(self.peaks.get(number, 0), gpu["used_bytes"])


class OtherLoad:
    """The share of this machine's CPUs used by other programs since the creation of the object.

    Own use is this process plus its finished children; the caller has just waited for the children.
    """

    def __init__(self) -> None:
        self.began = _cpu_times()

    def share(self) -> Optional[float]:
        """Return the share from 0 to 1, or None if the system reports no CPU times or too little time has passed."""
        now = _cpu_times()
        if self.began is None or now is None:
            return None
        wall_s, busy_s, ours_s = (now[part] - self.began[part] for part in (0, 1, 2))
        if wall_s < SHORTEST_S or self.began[3] != now[3]:
            return None
        return min(1.0, max(0.0, busy_s - ours_s) / (wall_s * now[3]))


def _cpu_times() -> Optional[Tuple[float, float, float, int]]:
    """Return (clock, CPU time of all usable CPUs, own CPU time) in seconds and the number of usable CPUs.

    None on systems without readable /proc/stat.
    """
    try:
        ours = {"cpu%d" % number for number in os.sched_getaffinity(0)}
        lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        # user, nice, system, irq, softirq, steal; the time of guests is part of user
        busy = [
            sum(int(words[column]) for column in (1, 2, 3, 6, 7, 8)) for words in lines if words and words[0] in ours
        ]
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux, or the system hides the file
        return None
    spent = os.times()
    own_s = spent.user + spent.system + spent.children_user + spent.children_system
    return (time.monotonic(), sum(busy) * tick_s, own_s, len(busy)) if busy else None


def _ask(words: Sequence[str]) -> "Optional[subprocess.Popen[str]]":
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:  # nvidia-smi is gone or cannot be started now; the displayed age of the values grows
        return None


def _gpus(asked: "subprocess.Popen[str]") -> List[Dict[str, Any]]:
    """Return the values per GPU, None for values not reported by the GPU; [] without a valid answer."""
    with asked:
        lines = asked.stdout.read().splitlines() if asked.stdout else []
    rows = [[cell.strip() for cell in line.rsplit(",", 3)] for line in lines]
    if asked.returncode != 0 or any(len(row) != 4 for row in rows):
        return []
    return [
        {"name": row[0], "percent": _number(row[1]), "used_bytes": _bytes(row[2]), "memory_bytes": _bytes(row[3])}
        for row in rows
    ]


def _told(row: Sequence[Dict[str, Any]], name: str) -> List[int]:
    return [one[name] for one in row if one[name] is not None]


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _bytes(mebibytes: str) -> Optional[int]:
    number = _number(mebibytes)
    return None if number is None else number << 20
