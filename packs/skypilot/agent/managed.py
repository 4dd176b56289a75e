"""Entry point of a task run by an external engine such as SkyPilot: a guard in the foreground on each node.

    job.json, the engine's variables -> pod folder -> guard -> lines for the engine's log -> exit code

The engine delivers a folder with `code`, the carried folders and `job.json`; `job.json` contains neither the node
addresses nor the time spent in the queue. The program builds the same pod folder and runs the same guard as on any
other pod. Stdout carries the logs of the steps and periodic reports, because the engine may be the only way to reach
this machine. Before an engine takes a machine away, the engine signals every process on the machine and later restarts
the task on a new machine: the trainer saves a checkpoint and exits without a verdict.

Standard library only, with syntax that Python 3.9 accepts: the program runs on any machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from infra.agent import peer_addresses
from infra.agent.execution.steps import RESUME_ME
from infra.agent.job import Job, NodeGroup, PodFolder, earlier_part, is_earlier_part, write_durably
from infra.agent.process import disable_core_dumps
from infra.agent.state import (
    ENGINE,
    LEFT,
    acquire_lock,
    ask_to_stop,
    attempt_file,
    grace_s,
    is_held,
    lock,
    read_json,
    report,
    spawn,
    stop_file,
)

PODS = Path(".slipway", "pods")
WORDS = "-m packs.skypilot.agent.managed"
SUBMITTED_AT = "SLIPWAY_SUBMITTED_AT"  # UTC epoch seconds: start of the limits, shared by all machines of the run
REPORT = "slipway-report "
BETWEEN = " | "  # separates the step from the log line
POLL_S = 0.5
REPORT_EVERY_S = 10.0
REVIVE_S = 2.0
EARLIER_S = 300.0  # time for the processes of an earlier attempt in the same home to end
NUM_GPUS = "SKYPILOT_NUM_GPUS_PER_NODE"
ALLOCATION = "SLURM_JOB_ID"
CACHE = "SLIPWAY_ENVIRONMENTS"


def job_here(job: Job, environ: Mapping[str, str], interface: str, now: float) -> Job:
    """Return the job of this node, with node addresses, rank, number of GPUs and the seconds billed before now.

    Nodes with a rank above 0 run no `store.uploader` step and no `beside` program. `now` is in UTC epoch seconds.
    """
    ips = tuple(environ.get("SKYPILOT_NODE_IPS", "").split()) or ("127.0.0.1",)
    group = NodeGroup()
    if len(ips) > 1:
        rank = int(environ.get("SKYPILOT_NODE_RANK", "0"))
        group = replace(job.group, run=job.run, rank=rank, addresses=ips, interface=interface)
    asked_at = float(environ.get(SUBMITTED_AT) or now)
    limits = replace(job.limits, billed_s=max(0.0, now - asked_at))
    steps = job.steps if group.rank == 0 else tuple(one for one in job.steps if not _is_of_first(one.words))
    # Two nodes of an engine may share a machine, and a guard ends every process with the token of its pod. So each node
    # gets its own token.
    token = "{}.{}".format(job.token, group.rank) if group.rank else job.token
    num_gpus = int(environ.get(NUM_GPUS) or job.num_gpus)  # the engine may have picked a different acceptable GPU kind
    beside = None if group.rank else job.beside
    return replace(job, token=token, group=group, limits=limits, steps=steps, num_gpus=num_gpus, beside=beside)


def _is_of_first(words: Any) -> bool:
    return tuple(words[:2]) == ("-m", "store.uploader")


def create_pod_folder(brought: Path, home: Path, environ: Dict[str, str], now: float) -> PodFolder:
    """Create the pod folder of this node and move the job's secrets from `environ` to a private file."""
    job = Job.from_json((brought / "job.json").read_text(encoding="utf-8"))
    ips = environ.get("SKYPILOT_NODE_IPS", "").split()
    rank = int(environ.get("SKYPILOT_NODE_RANK", "0"))
    own = ips[rank] if rank < len(ips) else ""
    interface = {
        **peer_addresses.find_addresses("here")["addresses"],
        **peer_addresses.find_addresses("there")["addresses"],
    }.get(own, "")
    pod = PodFolder(home / PODS / (job.run + (".{}".format(rank) if rank else "")))
    pod.state.mkdir(parents=True, exist_ok=True)
    for one in brought.iterdir():
        link = pod.root / one.name
        if one.is_dir() and one.name != pod.state.name and not link.is_symlink():
            link.symlink_to(one)
    secrets = {name: environ.pop(name) for name in job.secrets if name in environ}
    write_durably(pod.secrets, json.dumps(secrets), 0o600)
    mine = job_here(job, environ, interface, now)
    write_durably(pod.marker, json.dumps({"token": mine.token, "run": mine.run}))
    write_durably(pod.job, mine.to_json(), 0o600)
    return pod


class LogRelay:
    """Relay to the engine's log: prints each line of every step log once, and reports."""

    def __init__(self, pod: PodFolder) -> None:
        self.pod = pod
        self.read: Dict[Path, int] = {}
        self.rest: Dict[Path, bytes] = {}
        self.reported_at = 0.0
        self.last = ""

    def print_lines(self, is_last: bool = False) -> None:
        for path in sorted(self.pod.logs.glob("*.log")) if self.pod.logs.exists() else ():
            if path.stem in ("guard", "agent") or is_earlier_part(path):
                continue
            piece, begin = self.rest.pop(path, b""), self.read.get(path, 0)
            if path.stat().st_size < begin:  # the log was rotated
                piece, begin = piece + _content(earlier_part(path), begin), 0
            fresh = _content(path, begin)
            self.read[path] = begin + len(fresh)
            piece += fresh
            whole, newline, rest = piece.rpartition(b"\n")
            if is_last and rest:
                whole, rest = piece, b""
            elif not newline:
                whole = b""
            self.rest[path] = rest
            for line in whole.splitlines():
                _print(path.stem + BETWEEN + line.decode("utf-8", "replace"))

    def print_report(self, is_due: bool = False) -> None:
        progress = read_json(self.pod.progress)
        step = str([progress.get("step"), progress.get("state")])
        if not is_due and step == self.last and time.monotonic() - self.reported_at < REPORT_EVERY_S:
            return
        self.last, self.reported_at = step, time.monotonic()
        guard = {key: value for key, value in read_json(report(self.pod, "guard")).items() if key != "identity"}
        _print(REPORT + json.dumps({"progress": progress, "guard": guard, "verdict": read_json(self.pod.verdict)}))


def _content(path: Path, begin: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(begin)
        return file.read()


def _print(line: str) -> None:
    print(line, flush=True)


def archive_attempt(pod: PodFolder) -> None:
    """Wait for the processes of an earlier attempt in the same home, then rename the files of the attempt.

    Raises SystemExit when the guard or the agent of the earlier attempt still runs after `EARLIER_S` seconds.
    """
    for role in ("guard", "agent"):
        held = acquire_lock(lock(pod, role), EARLIER_S)
        if held is None:
            raise SystemExit("the {} of an earlier attempt still runs after {:g} s".format(role, EARLIER_S))
        os.close(held)
    for one in (pod.verdict, stop_file(pod), pod.progress, attempt_file(pod), report(pod, "guard")):
        if one.exists():
            one.rename(one.with_name("{}-{}".format(one.name, time.time_ns())))


def reset_for_allocation(pod: PodFolder, home: Path, environ: Dict[str, str]) -> None:
    """Delete work, logs and marks of an earlier Slurm allocation in this home; the store holds the lasting copy.

    SkyPilot deletes the home of a cluster when the allocation ends, and Slurm may kill SkyPilot during the deletion. A
    mark or an environment may then remain although the files behind the mark are gone. Without a Slurm allocation, do
    nothing.
    """
    allocation = environ.get(ALLOCATION, "")
    if not allocation:
        return
    if not environ.get(CACHE):
        environ[CACHE] = str(home / ".cache" / "slipway" / "environments-{}".format(allocation))
    note = pod.state / "allocation"
    if note.exists() and note.read_text(encoding="utf-8") == allocation:
        return
    for folder in (pod.work, pod.logs, pod.state / "marks", pod.state / "earlier"):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (pod.acknowledged, pod.waiting):
        if file.exists():
            file.unlink()
    write_durably(note, allocation)


def has_left(pod: PodFolder) -> bool:
    """Return whether the job has stopped, or is stopping, without a verdict so that the engine restarts the task."""
    return not pod.verdict.exists() and read_json(stop_file(pod)).get("state") == LEFT


def exit_code(pod: PodFolder) -> int:
    """Return the exit code of the engine's task: 0 for success, 1 for failure, `RESUME_ME` to request a restart."""
    if has_left(pod):
        return RESUME_ME
    return 0 if read_json(pod.verdict).get("state") == "succeeded" else 1


def main() -> int:
    os.umask(os.umask(0o022) | 0o022)
    disable_core_dumps()
    pod = create_pod_folder(Path.cwd(), Path.home(), os.environ, time.time())  # type: ignore[arg-type]
    archive_attempt(pod)
    reset_for_allocation(pod, Path.home(), os.environ)  # type: ignore[arg-type]
    job = Job.from_json(pod.job.read_text(encoding="utf-8"))
    os.environ[ENGINE] = "skypilot"
    told: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    relay = LogRelay(pod)
    guard: Optional["subprocess.Popen[bytes]"] = None
    begun_at = 0.0
    while True:
        is_guarded = guard is not None and guard.poll() is None
        is_over = pod.verdict.exists() or has_left(pod) and not is_held(lock(pod, "agent"))
        if is_over and not is_guarded:
            break
        if not is_guarded and time.monotonic() - begun_at > REVIVE_S:
            guard, begun_at = spawn(pod, job, "guard"), time.monotonic()
        if told:
            ask_to_stop(pod, LEFT, "SkyPilot has taken this machine away", grace_s())
        relay.print_lines()
        relay.print_report()
        time.sleep(POLL_S)
    relay.print_lines(is_last=True)
    relay.print_report(is_due=True)
    return exit_code(pod)


if __name__ == "__main__":
    sys.exit(main())
