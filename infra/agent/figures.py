"""The utilization of a pod's machine: free disk, and of each GPU its load and its memory.

Nobody waits for nvidia-smi: on a broken driver it hangs where no signal reaches it. Each figure carries its time.
"""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

LOOK_EVERY_S = 5.0
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
        """Return what is known: disk_free_bytes and disk_at; gpus and gpus_at where GPUs have answered."""
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
