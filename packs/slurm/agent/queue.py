"""Queries to a Slurm cluster through Slurm's commands; runs on a machine with these commands.

The file is sent over a connection and run as `python3 - VERB WORDS` before any of our code is on the cluster; the agent
also imports the module. So the file imports none of our code. The program prints a JSON document: {"unheard": why} when
Slurm cannot be queried.

    jobs [NAME]        jobs of this user, or the jobs with this name, including recently ended jobs
    partitions         every partition with its nodes
    test OPTION...     check whether sbatch accepts a job with these options; sbatch's message if not
    ended NAME...      end states of jobs that `jobs` no longer lists, from Slurm's accounting
    cancel NAME        cancel the jobs with this name; return the remaining jobs
"""

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Sequence

CALL_S, ACCOUNT_S = 25, 5
MOST_DIGITS = 18  # in a job number
PLACES = ("/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/cm/shared/apps/slurm/current/bin")
JOB = ("job", "state", "partition", "nodes", "left", "at", "name", "reason")  # the last may contain the separator
JOB_FORMAT = "%i|%T|%P|%D|%L|%N|%j|%r"
ACCOUNT = ("job", "state", "name")
NODE = ("node", "partition", "state", "cpus", "memory_mib", "time", "gres")
NODE_FORMAT = "%N|%R|%T|%c|%m|%l|%G"
OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
# Variables of start-up files that filter or change the answers of Slurm's commands, or make another kind of job.
OWN_OPTIONS = re.compile(r"(SACCT|SCANCEL|SINFO|SQUEUE)_|SBATCH_(ARRAY_INX|CLUSTERS|ERROR|WAIT)$")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


class QueueError(Exception):
    """Raised when Slurm cannot be queried or refuses a command; the message is one line."""


def call(words: Sequence[str], text: str = "", within_s: float = CALL_S) -> str:
    """Run a Slurm command with `text` on stdin and return the output. Raises QueueError with Slurm's message.

    The command may take `within_s` seconds.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *PLACES])
    program = shutil.which(words[0], path=path)
    if program is None:
        raise QueueError("{} is not installed on this machine; is this a login node of the cluster?".format(words[0]))
    environ = {name: value for name, value in os.environ.items() if not OWN_OPTIONS.match(name)}
    environ.update({"PATH": path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"})
    try:
        done = subprocess.run(
            [program, *words[1:]],
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=within_s,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueError("{}: {}".format(words[0], error)) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
        raise QueueError("{}: {}".format(words[0], said[:500] or "exit code {}".format(done.returncode)))
    return done.stdout.decode(errors="replace")


def jobs(name: str = "") -> Dict[str, Any]:
    """Return this user's jobs, oldest first. Raises QueueError when squeue fails, instead of an empty list."""
    which = ["--name", name] if name else []
    # --all: jobs in hidden partitions, too.
    asked = ["--noheader", "--all", "--states", "all", "--user", str(os.getuid()), *which]
    said = call(["squeue", *asked, "-o", JOB_FORMAT])
    return {"jobs": sorted(rows(said, JOB), key=lambda one: number(one["job"]))}


def ended(*names: str) -> Dict[str, Any]:
    """Return the ended jobs with these names from Slurm's accounting, oldest first; none without accounting.

    Only squeue decides that a job is alive: the accounting may list a vanished job as running.
    """
    asked = ["--allocations", "--user", str(os.getuid()), "--name", ",".join(names), "--starttime", "now-30days"]
    try:
        said = call(["sacct", "--noheader", "--parsable2", *asked, "-o", "JobIDRaw,State,JobName"], within_s=ACCOUNT_S)
    except QueueError:
        return {"jobs": []}
    found = [{**one, "state": one["state"].partition(" ")[0], "reason": ""} for one in rows(said, ACCOUNT)]
    return {"jobs": sorted((one for one in found if one["state"] in OVER), key=lambda one: number(one["job"]))}


def newest(name: str) -> Dict[str, str]:
    """Return the most recently submitted job with this name; {} when Slurm lists no such job."""
    found = jobs(name)["jobs"]
    return dict(found[-1]) if found else {}


def lives(job: Mapping[str, str]) -> bool:
    """Return whether Slurm runs this job, waits to run the job, or will requeue the job by itself."""
    return bool(job) and job["state"] not in OVER


def rows(said: str, names: Sequence[str]) -> List[Dict[str, str]]:
    """Parse the lines of a listing into rows; only the last column may contain the separator `|`."""
    found = []
    for line in said.splitlines():
        cells = line.strip().split("|", len(names) - 1)
        if len(cells) == len(names):
            found.append({name: cell.strip() for name, cell in zip(names, cells)})  # noqa: B905 (Python 3.9)
    return found


def number(job: str) -> int:
    """Return the leading number of a job id (for an array job the array's number), or 0 without a number.

    Raises QueueError for more than `MOST_DIGITS` digits.
    """
    found = re.match(r"[0-9]+", job)
    if found and len(found.group()) > MOST_DIGITS:
        raise QueueError(f"the queue lists a job with a number of {len(found.group())} digits: {job[:20]}...")
    return int(found.group()) if found else 0


def partitions() -> Dict[str, Any]:
    """Return one row per node and partition."""
    return {"nodes": rows(call(["sinfo", "--noheader", "--Node", "-o", NODE_FORMAT]), NODE)}


def test(*options: str) -> Dict[str, Any]:
    """Return sbatch's reason to refuse a job with these options; "" when sbatch accepts the job."""
    try:
        call(["sbatch", "--test-only", *options], "#!/bin/sh\nexit 0\n")
    except QueueError as error:
        return {"problem": str(error)}
    return {"problem": ""}


def cancel(name: str) -> Dict[str, Any]:
    """Cancel the live jobs with this name; return the remaining live jobs."""
    if any(lives(one) for one in jobs(name)["jobs"]):
        call(["scancel", "--name", name, "--user", str(os.getuid())])
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
