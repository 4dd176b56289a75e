"""The queue of a Slurm cluster, as its own commands tell of it; run on a machine that has them.

Sent over a connection and run as `python3 - VERB WORDS`, before any code of ours is there, and imported by the agent:
one file that imports nothing of ours and prints one JSON document: {"unheard": why} where Slurm cannot be asked.

    jobs [NAME]        this user's jobs, or those of that name; those that have ended lately among them
    partitions         every partition, and which nodes it has
    test OPTION...     whether sbatch would take a job with these options; its own words when it would not
    ended NAME...      how the jobs of these names have ended that `jobs` does not show any more, by Slurm's accounting
    cancel NAME        cancel the jobs of that name; then those that are left
"""

import getpass
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Sequence

CALL_S, ACCOUNT_S = 25, 5
MOST_DIGITS = 18  # of a job's number
PLACES = ("/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin")
JOB = ("job", "state", "partition", "nodes", "left", "at", "name", "reason")  # the last may hold anything
JOB_FORMAT = "%i|%T|%P|%D|%L|%N|%j|%r"
ACCOUNT = ("job", "state", "name")
NODE = ("node", "partition", "state", "cpus", "memory_mib", "time", "gres")
NODE_FORMAT = "%N|%R|%T|%c|%m|%l|%G"
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
)  # fmt: skip
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


class QueueError(Exception):
    """Slurm cannot be asked, or refuses; the message is one line."""


def call(words: Sequence[str], text: str = "", within_s: float = CALL_S) -> str:
    """Return the output of a command of Slurm. Raises QueueError with its own words."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    program = shutil.which(words[0], path=path)
    if program is None:
        raise QueueError("there is no {} on this machine; is it a login node of the cluster?".format(words[0]))
    environ = {**os.environ, "PATH": path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            [program, *words[1:]], input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=within_s, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueError("{}: {}".format(words[0], error)) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise QueueError("{}: {}".format(words[0], said[:500] or "exit code {}".format(done.returncode)))
    return done.stdout.decode(errors="replace")


def jobs(name: str = "") -> Dict[str, Any]:
    """Return this user's jobs, the oldest first. A queue that does not answer raises QueueError: it is not empty."""
    which = ["--name", name] if name else []
    said = call(["squeue", "--noheader", "--states", "all", "--user", getpass.getuser(), *which, "-o", JOB_FORMAT])
    return {"jobs": sorted(rows(said, JOB), key=lambda one: number(one["job"]))}


def ended(*names: str) -> Dict[str, Any]:
    """Return the jobs of these names that have ended by Slurm's accounting, the oldest first; none where it has none.

    Only squeue says that a job lives: what an accounting takes for running may be gone.
    """
    asked = ["--allocations", "--user", getpass.getuser(), "--name", ",".join(names), "--starttime", "now-30days"]
    try:
        said = call(["sacct", "--noheader", "--parsable2", *asked, "-o", "JobIDRaw,State,JobName"], within_s=ACCOUNT_S)
    except QueueError:
        return {"jobs": []}
    found = [{**one, "state": one["state"].partition(" ")[0], "reason": ""} for one in rows(said, ACCOUNT)]
    return {"jobs": sorted((one for one in found if one["state"] in OVER), key=lambda one: number(one["job"]))}


def newest(name: str) -> Dict[str, str]:
    """Return the job of that name that was submitted last; {} when Slurm knows none any more."""
    found = jobs(name)["jobs"]
    return dict(found[-1]) if found else {}


def lives(job: Mapping[str, str]) -> bool:
    """Return whether Slurm runs this job, or will run it again by itself."""
    return bool(job) and job["state"] not in OVER


def rows(said: str, names: Sequence[str]) -> List[Dict[str, str]]:
    """Return the lines of a listing; what stands in the last column may hold the separator."""
    found = []
    for line in said.splitlines():
        cells = line.strip().split("|", len(names) - 1)
        if len(cells) == len(names):
            found.append({name: cell.strip() for name, cell in zip(names, cells)})  # noqa: B905 (Python 3.9)
    return found


def number(job: str) -> int:
    """Return the number of a job, of an array the array's."""
    found = re.match(r"[0-9]+", job)
    if found and len(found.group()) > MOST_DIGITS:
        raise QueueError(f"its queue lists a job with a number of {len(found.group())} digits: {job[:20]}...")
    return int(found.group()) if found else 0


def partitions() -> Dict[str, Any]:
    """Return a row for each node of each partition."""
    return {"nodes": rows(call(["sinfo", "--noheader", "--Node", "-o", NODE_FORMAT]), NODE)}


def test(*options: str) -> Dict[str, Any]:
    """Return why sbatch would refuse a job with these options; "" when it would take it."""
    try:
        call(["sbatch", "--test-only", *options], "#!/bin/sh\nexit 0\n")
    except QueueError as error:
        return {"problem": str(error)}
    return {"problem": ""}


def cancel(name: str) -> Dict[str, Any]:
    """Cancel what lives under that name; return what is left."""
    if any(lives(one) for one in jobs(name)["jobs"]):
        call(["scancel", "--name", name, "--user", getpass.getuser()])
    return {"jobs": [one for one in jobs(name)["jobs"] if lives(one)]}


VERBS: Dict[str, Callable[..., Dict[str, Any]]] = {
    "jobs": jobs,
    "partitions": partitions,
    "test": test,
    "ended": ended,
    "cancel": cancel,
}

if __name__ == "__main__":
    try:
        print(json.dumps(VERBS[sys.argv[1]](*sys.argv[2:])))
    except QueueError as refusal:
        print(json.dumps({"unheard": str(refusal)}))
