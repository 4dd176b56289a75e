"""The command of a task that another engine runs, such as SkyPilot: a guard in the foreground, on each of its nodes.

    job.json, the engine's variables -> a pod's folder -> guard -> lines for the engine's log -> an exit code

In: the folder that the engine has brought here, with `code`, what goes along and `job.json`, which knows neither its
nodes nor how long it has waited. Out: what every pod has, with the same guard that holds it to its limits; on stdout
the logs of the steps, and now and then how it is, since nobody may reach this machine otherwise. An engine that takes
a machine away signals every process there, and begins this anew on another one: the work saves, and leaves without a
verdict.

Standard library only, and a grammar that Python 3.9 reads: this runs on any machine.
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

from infra.agent import meet
from infra.agent.execution.steps import RESUME_ME
from infra.agent.job import Job, NodeGroup, PodFolder, earlier_part, is_earlier_part, write_durably
from infra.agent.process import leave_no_core
from infra.agent.state import (
    ENGINE,
    LEFT,
    ask_to_stop,
    attempt_file,
    grace_s,
    hold,
    is_held,
    lock,
    read_json,
    report,
    spawn,
    stop_file,
)

PODS = Path(".slipway", "pods")
WORDS = "-m packs.skypilot.agent.managed"
SUBMITTED_AT = "SLIPWAY_SUBMITTED_AT"  # UTC epoch seconds: limits count from there, over all machines of the run
REPORT = "slipway-report "
BETWEEN = " | "  # the step and its line
POLL_S = 0.5
REPORT_EVERY_S = 10.0
REVIVE_S = 2.0
EARLIER_S = 300.0  # time for the processes of an earlier attempt in the same home to end
NUM_GPUS = "SKYPILOT_NUM_GPUS_PER_NODE"
ALLOCATION = "SLURM_JOB_ID"
CACHE = "SLIPWAY_ENVIRONMENTS"


def job_here(job: Job, environ: Mapping[str, str], interface: str, now: float) -> Job:
    """Return the job as this node of it has it: who the nodes are, its GPUs, and how long it was billed before."""
    ips = tuple(environ.get("SKYPILOT_NODE_IPS", "").split()) or ("127.0.0.1",)
    group = NodeGroup()
    if len(ips) > 1:
        rank = int(environ.get("SKYPILOT_NODE_RANK", "0"))
        group = replace(job.group, run=job.run, rank=rank, addresses=ips, interface=interface)
    asked_at = float(environ.get(SUBMITTED_AT) or now)
    limits = replace(job.limits, billed_s=max(0.0, now - asked_at))
    steps = job.steps if group.rank == 0 else tuple(one for one in job.steps if not _is_of_first(one.words))
    # Two nodes of an engine may be one machine, where a guard ends whatever bears the token of its pod.
    token = "{}.{}".format(job.token, group.rank) if group.rank else job.token
    num_gpus = int(environ.get(NUM_GPUS) or job.num_gpus)  # one of several acceptable kinds was taken
    beside = None if group.rank else job.beside
    return replace(job, token=token, group=group, limits=limits, steps=steps, num_gpus=num_gpus, beside=beside)


def _is_of_first(words: Any) -> bool:
    return tuple(words[:2]) == ("-m", "store.courier")


def lay_out(brought: Path, home: Path, environ: Dict[str, str], now: float) -> PodFolder:
    """Make the folder of the pod of this node, and take the secrets out of the environment."""
    job = Job.from_json((brought / "job.json").read_text(encoding="utf-8"))
    ips = environ.get("SKYPILOT_NODE_IPS", "").split()
    rank = int(environ.get("SKYPILOT_NODE_RANK", "0"))
    own = ips[rank] if rank < len(ips) else ""
    interface = {**meet.look("here")["addresses"], **meet.look("there")["addresses"]}.get(own, "")
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
    """Prints the engine's log: each line of every step's log once, and reports."""

    def __init__(self, pod: PodFolder) -> None:
        self.pod = pod
        self.read: Dict[Path, int] = {}
        self.rest: Dict[Path, bytes] = {}
        self.reported_at = 0.0
        self.last = ""

    def lines(self, is_last: bool = False) -> None:
        for path in sorted(self.pod.logs.glob("*.log")) if self.pod.logs.exists() else ():
            if path.stem in ("guard", "agent") or is_earlier_part(path):
                continue
            piece, begin = self.rest.pop(path, b""), self.read.get(path, 0)
            if path.stat().st_size < begin:  # it was rotated
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

    def report(self, is_due: bool = False) -> None:
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


def put_away(pod: PodFolder) -> None:
    """Rename what an earlier attempt has left in the same home, once its processes are gone. Raises SystemExit."""
    for role in ("guard", "agent"):
        held = hold(lock(pod, role), EARLIER_S)
        if held is None:
            raise SystemExit("the {} of an earlier attempt is still there after {:g} s".format(role, EARLIER_S))
        os.close(held)
    for one in (pod.verdict, stop_file(pod), pod.progress, attempt_file(pod), report(pod, "guard")):
        if one.exists():
            one.rename(one.with_name("{}-{}".format(one.name, time.time_ns())))


def begin_afresh(pod: PodFolder, home: Path, environ: Dict[str, str]) -> None:
    """Do without what another allocation of Slurm's has left in this home; what counts of it is in the store.

    SkyPilot deletes the home of a cluster whose allocation ends, and Slurm may kill it over that. Then a mark or an
    environment is still there, and what it stands for is not.
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
    """Return whether the work has left, or is leaving, to be begun anew."""
    return not pod.verdict.exists() and read_json(stop_file(pod)).get("state") == LEFT


def exit_code(pod: PodFolder) -> int:
    """Return with what the engine's task ends; RESUME_ME is what it is begun anew for."""
    if has_left(pod):
        return RESUME_ME
    return 0 if read_json(pod.verdict).get("state") == "succeeded" else 1


def main() -> int:
    os.umask(os.umask(0o022) | 0o022)
    leave_no_core()
    pod = lay_out(Path.cwd(), Path.home(), os.environ, time.time())  # type: ignore[arg-type]
    put_away(pod)
    begin_afresh(pod, Path.home(), os.environ)  # type: ignore[arg-type]
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
            ask_to_stop(pod, LEFT, "the engine has taken this machine away", grace_s())
        relay.lines()
        relay.report()
        time.sleep(POLL_S)
    relay.lines(is_last=True)
    relay.report(is_due=True)
    return exit_code(pod)


if __name__ == "__main__":
    sys.exit(main())
