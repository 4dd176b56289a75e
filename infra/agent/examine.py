"""The benchmark of a machine, run on the machine in the first minute, before any work.

This file is sent over a connection and run as `python3 - CONFIG`. The file imports no other module of this project and
prints one JSON document. CONFIG is a JSON object: `folder` (on the disk to test), `gpus` (whether GPUs are needed),
`pythons` (interpreters that may have torch), `url` (download test, "" = none), `disk_s`, `download_s` and `matmul_s`
(timeouts in seconds). Each check runs in a separate process group with a deadline, so that a dead disk or a hung driver
cannot delay the other checks. The result of a check has a `value`, an `error`, or `later` (cannot be measured yet).
"""

import contextlib
import ctypes
import glob
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, Callable, Dict, Tuple

BLOCK = 4 << 20
WRITE_BYTES = 128 << 20
DOWNLOAD_BYTES = 64 << 20
ENVIRONMENTS = "~/.cache/slipway/environments/train-*/bin/python"
NO_TORCH = 3
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, PR_SET_NO_NEW_PRIVS = 444, 446, 38
MATMUL = """
import json, sys, time
from importlib import metadata
try:
    if metadata.version("torch").endswith("+cpu"):  # told without the import, which takes seconds
        sys.exit(3)
    import torch
except ImportError:
    sys.exit(3)
if torch.version.cuda is None:
    sys.exit(3)
size, rounds, rows = 4096, 10, []
for index in range(torch.cuda.device_count()):
    ones = torch.ones(size, size, device=f"cuda:{index}", dtype=torch.bfloat16)
    product = ones @ ones
    torch.cuda.synchronize(index)
    began = time.perf_counter()
    for _ in range(rounds):
        product = ones @ ones
    torch.cuda.synchronize(index)
    tflops = 2 * size**3 * rounds / (time.perf_counter() - began) / 1e12
    rows.append({"tflops": round(tflops, 1), "exact": bool((product == size).all())})
print(json.dumps(rows))
"""

Check = Callable[[Dict[str, Any]], Dict[str, Any]]


def free(config: Dict[str, Any]) -> Dict[str, Any]:
    """Return the free disk space in bytes."""
    return {"value": shutil.disk_usage(config["folder"]).free}


def disk_write(config: Dict[str, Any]) -> Dict[str, Any]:
    """Measure the disk write rate in bytes per second, including fsync; writing takes at most half of the timeout."""
    block, written = os.urandom(BLOCK), 0
    with tempfile.TemporaryFile(dir=config["folder"]) as file:
        began = time.monotonic()
        while written < WRITE_BYTES and time.monotonic() - began < config["disk_s"] / 2:
            written += file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return {"value": written / (time.monotonic() - began)}


def download(config: Dict[str, Any]) -> Dict[str, Any]:
    """Measure the download rate in bytes per second from the first response on, and the number of bytes received."""
    if not config["url"]:
        return {"later": "no download URL is set (SLIPWAY_ACCEPT_URL)"}
    # `conclude` ends the check at the deadline; an equal timeout here would race with its message.
    with urllib.request.urlopen(config["url"], timeout=2 * config["download_s"]) as answer:
        began, received = time.monotonic(), 0
        while received < DOWNLOAD_BYTES and time.monotonic() - began < config["download_s"] / 2:
            block = answer.read1(1 << 20)
            received += len(block)
            if not block:
                break
        return {"value": received / max(1e-6, time.monotonic() - began), "bytes": received}


def cuda(config: Dict[str, Any]) -> Dict[str, Any]:
    """Return the newest CUDA version supported by the driver, as text."""
    if not config["gpus"] or not shutil.which("nvidia-smi"):
        return {"later": "no GPU was requested, or nvidia-smi is not installed"}
    said = subprocess.run(["nvidia-smi"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = re.search(r"CUDA[A-Z ]* Version: *([0-9]+\.[0-9]+)", said.stdout.decode(errors="replace"))
    return {"value": found.group(1)} if found else {"error": "nvidia-smi prints no CUDA version"}


def matmul(config: Dict[str, Any]) -> Dict[str, Any]:
    """Measure bfloat16 TFLOP/s of each GPU, and check the product for correctness."""
    if not config["gpus"] or not shutil.which("nvidia-smi"):
        return {"later": "no GPU was requested, or nvidia-smi is not installed"}
    pythons = config["pythons"] + sorted(glob.glob(os.path.expanduser(ENVIRONMENTS))) + [sys.executable]
    for python in dict.fromkeys(pythons):
        with tempfile.TemporaryFile() as errors:
            done = subprocess.run(
                [python, "-c", MATMUL], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
            if done.returncode == 0:
                return {"value": json.loads(done.stdout.decode())}
            if done.returncode != NO_TORCH:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                return {"error": f"exit code {done.returncode}: {said[-1][:300]}"}
    return {"later": "torch with CUDA is not installed yet"}


def sandbox(config: Dict[str, Any]) -> Dict[str, Any]:
    """Return a usable sandbox for model-written code: `bubblewrap`, `landlock`, or "", each determined by a trial.

    Training tests the whole sandbox again before running such code (`trainer.rewards.jail`); this probe needs only the
    system Python. The landlock trial confines the current process for good.
    """
    if shutil.which("bwrap"):
        tried = subprocess.run(
            ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if tried.returncode == 0:
            return {"value": "bubblewrap"}
    libc = ctypes.CDLL(None)
    rights = ctypes.byref(ctypes.c_uint64((1 << 13) - 1))  # all access rights of Landlock ABI version 1
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, rights, ctypes.c_size_t(8), 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if ruleset < 0 or libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0):
        return {"value": ""}
    with contextlib.suppress(PermissionError):
        os.listdir("/")
        return {"value": ""}
    return {"value": "landlock"}


CHECKS: Tuple[Tuple[str, Check, str], ...] = (
    ("free", free, "disk_s"),
    ("disk_write", disk_write, "disk_s"),
    ("download", download, "download_s"),
    ("cuda", cuda, "disk_s"),
    ("sandbox", sandbox, "disk_s"),
    ("matmul", matmul, "matmul_s"),
)


def begin(check: Check, config: Dict[str, Any]) -> Tuple[int, int]:
    """Start a check in a child process with a new process group; return the child's pid and the pipe for the result."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    os.setsid()
    for number in (1, 2):  # a hung child must not keep the connection open
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    try:
        answer = check(config)
    except Exception as error:  # every error is a result
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def conclude(pid: int, reader: int, deadline: float, within_s: float) -> Dict[str, Any]:
    """Return the result of a child and kill the child's process group; an error result after the deadline."""
    said = b""
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        block = os.read(reader, 1 << 16)
        said += block
        if not block:
            break
    else:
        said = json.dumps({"error": f"no answer in {within_s:g} s"}).encode()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the child has ended
        os.killpg(pid, signal.SIGKILL)
    return dict(json.loads(said or b'{"error": "the check exited without a result"}'))


def main() -> None:
    began_at = time.time()
    config = json.loads(sys.argv[1])
    config["folder"] = os.path.expanduser(config["folder"])
    os.makedirs(config["folder"], mode=0o700, exist_ok=True)
    began = time.monotonic()
    children = [(name, config[limit], begin(check, config)) for name, check, limit in CHECKS]
    answers = {name: conclude(*child, began + within_s, within_s) for name, within_s, child in children}
    print(json.dumps({"began_at": began_at, "ended_at": time.time(), **answers}), flush=True)


if __name__ == "__main__":
    main()
