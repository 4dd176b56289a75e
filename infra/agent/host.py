"""The probe of a machine: hardware, existing pods, and the marker of a pod.

This file is sent over a connection and run as `python3 - VERB WORDS` before any other code is on the machine. The file
imports no other module of this project and prints one JSON document.

    facts              hardware and software of the machine, and the pods on the machine
    pods               the pods on the machine: the markers under ~/.slipway/pods
    mark RUN TOKEN [beside [DEVICES [MACHINE [PLACE]]]]
                       create the folder and the marker of a pod. Without further words, fail if the machine holds a
                       different pod. `beside`: fail only if this folder belongs to a different pod. DEVICES, such as
                       `0,1`: fail if another pod holds one of these GPUs or the whole machine. MACHINE: token of the
                       rented pod that provides this machine; that pod never conflicts. PLACE: name of the machine in
                       the inventory, because a machine may have several names, and machines may share a home
    unmark RUN TOKEN   delete marker and secrets; keep all files that the pod has written
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

ROOT = os.path.join(os.path.expanduser("~"), ".slipway", "pods")
SMI_S = 20
LOCK_S = 10
POLL_S = 0.02


def facts() -> Dict[str, Any]:
    """Return facts about the machine; sizes in bytes, null for unknown values."""
    import platform  # imported here, because every command imports this module, and few ask for these facts

    memory = None
    if "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    gpus, problem = nvidia()
    return {
        "python": platform.python_version(),
        "python_path": sys.executable,
        "system": " ".join((platform.system(), platform.release(), platform.machine())),
        "cpus": len(usable),
        "memory_bytes": memory,
        "free_bytes": shutil.disk_usage(os.path.expanduser("~")).free,
        "gpus": gpus,
        "gpu_problem": problem,
        "rsync": which("rsync"),
        "uv": which("uv"),
        "pods": pods(),
    }


def which(name: str) -> Optional[str]:
    """Return the path of a program, also from folders that only a login shell has on PATH, or None."""
    more = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin")
    places = [os.environ.get("PATH", os.defpath)] + [os.path.expanduser(one) for one in more]
    return shutil.which(name, path=os.pathsep.join(places))


def nvidia() -> Tuple[List[Dict[str, Any]], str]:
    """Return the GPUs, and the problem of nvidia-smi ("" without a problem)."""
    if not shutil.which("nvidia-smi"):
        return [], ""
    said, problem = ask_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    if problem:
        return [], problem
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    if any(len(row) != 3 for row in rows):
        return [], f"unexpected output of nvidia-smi: {said[:200]}"
    wholes = [{"name": row[0], "memory_bytes": mebibytes(row[1]), "driver": row[2]} for row in rows]
    # With `--query-gpu=name`, nvidia-smi prints whole GPUs even if only MIG slices are available.
    return sliced(wholes, ask_smi("-L")[0]), ""


def ask_smi(*words: str) -> Tuple[str, str]:
    """Return the output of nvidia-smi and the problem; one of the two is ""."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SMI_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi: {error}"
    said = done.stdout.decode(errors="replace").strip()
    return ("", f"nvidia-smi: exit code {done.returncode}: {said[:200]}") if done.returncode else (said, "")


def sliced(wholes: List[Dict[str, Any]], listed: str) -> List[Dict[str, Any]]:
    """Return the GPUs, with each partitioned GPU replaced by its MIG slices; `listed` is `nvidia-smi -L` output."""
    found: List[Dict[str, Any]] = []
    number, has_slices = -1, False
    for line in listed.splitlines():
        if line.startswith("GPU "):
            number, has_slices = number + 1, False
            found += wholes[number : number + 1]
        part = re.match(r"\s+MIG (\d+g\.(\d+)gb\S*)\s", line)
        if part and 0 <= number < len(wholes):
            found = found if has_slices else found[:-1]
            name = "{} MIG {}".format(wholes[number]["name"], part.group(1))
            found.append({**wholes[number], "name": name, "memory_bytes": int(part.group(2)) * 10**9})
            has_slices = True
    return found if number + 1 == len(wholes) else wholes


def mebibytes(text: str) -> Optional[int]:
    """Convert MiB as text to bytes; return None for a GPU that shares the machine's memory and reports no size."""
    return int(text) << 20 if text.isdigit() else None


def pods() -> List[Dict[str, Any]]:
    """Return an entry per marker; an unreadable marker gives an entry with `problem` instead of being skipped."""
    try:
        names = sorted(os.listdir(ROOT))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        folder = os.path.join(ROOT, name)
        try:
            with open(os.path.join(folder, "POD.json")) as file:
                marker = json.load(file)
            ids = {"run": str(marker["run"]), "token": str(marker["token"]), "folder": folder}
            found.append({**ids, **{name: str(marker.get(name, "")) for name in ("devices", "place")}})
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            found.append({"folder": folder, "problem": f"POD.json is damaged: {error}"})
    return found


def may_share(devices: str, others: str) -> bool:
    """Return whether two pods can share a machine, given the GPU indices of each; "" means the whole machine."""
    return bool(devices and others) and not set(devices.split(",")) & set(others.split(","))


def mark(
    run: str, token: str, beside: str = "", devices: str = "", machine: str = "", place: str = ""
) -> Dict[str, Any]:
    """Create the marker of a pod and return {"folder": path}, or {"holder": pod} if another pod holds the machine.

    `beside` allows other pods in other folders, as on the login node of a cluster.
    """
    take_turn()
    folder = os.path.join(ROOT, run)
    for pod in pods():
        if machine and pod.get("token") == machine:
            continue
        if pod["folder"] != folder and (beside or may_share(devices, pod.get("devices", ""))):
            continue
        if (pod.get("token"), pod["folder"]) != (token, folder):
            return {"holder": pod}
    os.makedirs(os.path.join(folder, "state"), mode=0o700, exist_ok=True)
    # A durable write, as the lock below, without the shared helpers: this file imports no project module.
    draft = os.path.join(folder, f".{token}.draft")
    with open(draft, "w") as file:
        json.dump({"token": token, "run": run, "devices": devices, "place": place}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, os.path.join(folder, "POD.json"))
    return {"folder": folder}


def unmark(run: str, token: str) -> Dict[str, Any]:
    """Delete marker and secrets if the folder belongs to this token; return the remaining pods."""
    take_turn()
    folder = os.path.join(ROOT, run)
    ours = [pod for pod in pods() if pod.get("token") == token and pod["folder"] == folder]
    for name in ("secrets.json", "POD.json") if ours else ():
        if os.path.lexists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    return {"pods": pods()}


def take_turn() -> None:
    """Hold the lock of the machine until this process ends; exit with a message after LOCK_S seconds."""
    os.makedirs(ROOT, mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(ROOT, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit(f"{ROOT}: another process has held the lock for {LOCK_S} s")
            time.sleep(POLL_S)


VERBS: Dict[str, Callable[..., Dict[str, Any]]] = {
    "facts": facts,
    "pods": lambda: {"pods": pods()},
    "mark": mark,
    "unmark": unmark,
}

if __name__ == "__main__":
    os.umask(os.umask(0o022) | 0o022)
    print(json.dumps(VERBS[sys.argv[1]](*sys.argv[2:])))
