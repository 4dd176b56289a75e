"""The facts that decide whether compiled kernels can run: the machine, the packages and the code of the model."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
CODE = ("trainer/model", "trainer/objectives", "trainer/speed.py")
CPU_LINES = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("Features", "CPU implementer", "CPU variant", "CPU part"),
}
DRIVER = Path("/proc/driver/nvidia/version")
ASK_S = 10.0


def facts_of(device: str) -> dict[str, Any]:
    """Return the facts about this machine as plain values; device: `cpu` or `cuda`.

    Inductor compiles C++ with `-march=native`, also for a GPU, so the exact kind of CPU counts: a missing instruction
    would end the process.
    """
    found = {
        "device": device,
        "cpu": _digest(*_cpu_lines()),
        "units": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}",
        "compiler": _compiler(),
        "python": sys.version,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "code": _code(),
    }
    if device == "cuda":
        driver = re.search(r"\b(\d+)\.\d+(\.\d+)?\b", DRIVER.read_text() if DRIVER.exists() else "")
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "architecture": ".".join(map(str, torch.cuda.get_device_capability())),
            "driver": driver[1] if driver else "",
            "cuda": torch.version.cuda or "",
            "triton": _triton(),
        }
    return found


def name_of(facts: Mapping[str, Any]) -> str:
    """Return the name of the machine for people."""
    if facts["device"] == "cuda":
        return str(facts["gpu"])
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cpu_lines() -> list[str]:
    """Return the lines about the first processor that tell the kind and the instructions."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(errors="replace").partition("\n\n")[0] if path.exists() else platform.processor()
    lines = [line for line in text.splitlines() if line.partition(":")[0].strip() in CPU_LINES]
    return sorted(lines or [text])


def _compiler() -> str:
    """Return the first line of the compiler's version, "" without a compiler."""
    try:
        words = [os.environ.get("CXX") or "g++", "--version"]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0]


def _code() -> str:
    files = [path for part in CODE for path in ([ROOT / part] if part.endswith(".py") else (ROOT / part).glob("*.py"))]
    return _digest(*(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(files)))


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def _digest(*lines: str) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]
