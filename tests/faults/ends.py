"""Trials of the ends of a RunPod pod, whose vendor has no timer: kill all ends but one, at any moment.

    python -m tests.faults.ends --kills 200 --seed 7

Each trial rents a rehearsed pod in a separate process. The trial kills the process at a labelled point between request
and hand-over, while the vendor answers rent requests in any way. Then the trial kills or stops the guard, or kills the
container's timer, and no part of Slipway runs outside the pod. The true state decides: every pod is gone at its limit.
If both ends of a pod are killed, the pod bills until the next check from outside, which ends the pod.
"""

import argparse
import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.agent import process
from infra.agent.lifecycle.start_timer import ALIVE, FOLDER
from infra.ledger import reap
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.rehearsal.clock import parse_iso
from infra.settings import VENDORS, Settings
from tests import seeds
from tests.faults.rented import Wrong
from tests.faults.trial import checkout
from tests.hosts import until
from tests.infra.rehearsal.worlds import Running, world
from tests.processes import command_line
from tests.programs import source
from tests.world import ROOT

SPEED = 20.0
LIMIT_S = 1200.0  # by the vendor's clock: a minute of real time
LATE_S = 120.0 + 2.0 * SPEED  # also by the vendor's clock: how long a pod may remain after the limit
LONG_S = 120.0
QUIET_S = 1.0  # no timer: neither end is left
AT_ONCE = 8
RENT = source("rent_until")
STAGES = (
    "before create", "sent create", "answered create", "after created", "said rent", "said boot", "said push",
    "before armed", "handed over",
)  # fmt: skip
KINDS = ("laptop", "guard early", "guard", "guard stopped", "timer", "both")
ANSWERS: tuple[dict[str, Any], ...] = (
    {"kind": "throttle", "retry_after_s": 1}, {"kind": "lost"}, {"kind": "error but done"}, {"kind": "torn"},
    {"kind": "dropped"}, *({"kind": "error", "status": status} for status in (400, 402, 403, 409, 410, 422, 500)),
)  # fmt: skip


@dataclass
class Trial:
    """A pod, or no pod after a refused request. `kind`: the ends to kill."""

    kind: str
    stage: str
    folder: Path
    environ: dict[str, str]
    process: "subprocess.Popen[str] | None" = None
    pods: list[dict[str, Any]] = field(default_factory=list)

    @property
    def run(self) -> str:
        return self.folder.name

    def settings(self) -> Settings:
        return Settings.load(self.folder, environ=self.environ)

    @contextlib.contextmanager
    def journal(self) -> Iterator[Journal]:
        with Journal.open(self.settings().state_file, {"XDG_CONFIG_HOME": str(self.folder)}) as journal:
            yield journal


@dataclass
class Rig:
    seed: int
    kinds: tuple[str, ...] = KINDS
    stages: tuple[str, ...] = STAGES
    late: str = ""  # a line before the program of a launch: known to be bad
    kills: Counter[str] = field(default_factory=Counter)
    ended_by: Counter[str] = field(default_factory=Counter)
    worst_s: float = -LIMIT_S

    def run(self, kills: int, say: Callable[[str], None]) -> None:
        """Run the trials. Raises Wrong for a pod that exists long after the limit."""
        chance = random.Random(self.seed)
        os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # has uv
        with tempfile.TemporaryDirectory(prefix="ends-", ignore_cleanup_errors=True) as name:
            folder, number = Path(name), 0
            checkout(folder / "checkout")
            while sum(self.kills.values()) < kills:
                number += 1
                with world(folder / f"world-{number}", speed=SPEED) as running:
                    every = range(number * AT_ONCE, (number + 1) * AT_ONCE)
                    # Laptops first, each with separate answers; every other kind needs a pod, and the vendor's consent.
                    kinds = sorted((self.kinds[one % len(self.kinds)] for one in every), key="laptop".__ne__)
                    trials = [self._begun(running, folder, chance, number, *one) for one in enumerate(kinds)]
                    for one in trials:
                        self._strike(running, one, chance)
                    self._judge(running, trials)
                said = ", ".join(f"{what} {count}" for what, count in sorted(self.kills.items()))
                say(f"round {number}: {sum(self.kills.values())} kills ({said})")

    def _begun(
        self, running: Running, folder: Path, chance: random.Random, number: int, index: int, kind: str
    ) -> Trial:
        stage = (
            chance.choice(self.stages)
            if kind == "laptop"
            else "before armed"
            if kind == "guard early"
            else "handed over"
        )
        if kind == "laptop":
            rules = [{"call": "create", "count": None, "chance": 0.3, **one} for one in ANSWERS]
            running.fault(requests=chance.sample(rules, 3))
        else:
            running.fault()
        own = folder / f"run-{number}-{index}"
        own.mkdir()
        environ = {
            "SLIPWAY_CLOCK_SCALE": str(SPEED),
            "SLIPWAY_STATE_FILE": str(own / "journal.db"),
            "SLIPWAY_BOOT_S": f"{LONG_S * SPEED:.0f}",
            "PYTHONPATH": str(ROOT),
        }
        about = running.about["runpod"]
        environ |= {"SLIPWAY_RUNPOD_URL": about["url"], VENDORS["runpod"].upper(): about["key"]}
        one = Trial(kind, stage, own, environ)
        words = [
            sys.executable,
            "-c",
            self.late + RENT,
            str(folder / "checkout"),
            str(own),
            own.name,
            str(LIMIT_S),
            stage,
        ]
        with (own / "said").open("w") as said:
            one.process = subprocess.Popen(words, env={**os.environ, **environ}, cwd=ROOT, stdout=said, stderr=said)
        if kind == "laptop":  # before the next trial has other answers
            one.process.wait(LONG_S)
        return one

    def _strike(self, running: Running, one: Trial, chance: random.Random) -> None:
        """Wait until the launch is dead, then kill the chosen ends of the pod."""
        assert one.process is not None
        if one.kind == "guard early":
            while one.process.poll() is None:
                for pod in self._pods(running, one):
                    self._end(pod["name"], signal.SIGKILL)
                time.sleep(0.01)
        if one.process.wait(LONG_S) == -signal.SIGKILL:
            self.kills[f"laptop: {one.stage}"] += 1
        one.pods = self._pods(running, one)
        said = (one.folder / "said").read_text()
        if "Traceback" in said:
            raise Wrong(f"{one.run}: {said[-2000:]}")
        if one.kind != "laptop" and not one.pods:
            raise Wrong(f"{one.run}: no pod: {said[-1000:]}")
        for pod in one.pods if one.kind != "laptop" else ():
            time.sleep(chance.choice([0.0, chance.random()]))
            home = next(Path(running.about["state"]).glob(f"pods/{pod['id']}-*/home"), None)
            if home is None:
                continue  # gone: the launch gave the pod back
            if one.kind in ("guard early", "guard", "both"):
                until(lambda pod=pod: not self._end(pod["name"], signal.SIGKILL), "the end of the guard", LONG_S)
                shutil.rmtree(home / ".slipway", ignore_errors=True)
                self.kills["guard, before it is armed" if one.kind == "guard early" else "guard"] += 1
            if one.kind == "guard stopped":
                stop(pod["name"])
                self.kills["guard, stopped"] += 1
            if one.kind in ("timer", "both"):
                # Strike earlier trials of the round first: this pod may have reached the limit meanwhile.
                ended = functools.partial(self._ended, running, pod["id"])
                until(lambda home=home, ended=ended: timer_of(home) or ended(), "the timer", LONG_S)
                self.kills["timer"] += end_timer(home)
                if ended():
                    one.kind += ", late"

    @staticmethod
    def _ended(running: Running, pod_id: str) -> bool:
        return bool(running.pod(pod_id)["ended_at"])

    @staticmethod
    def _end(token: str, number: int) -> int:
        """Signal every process of a job; return the number of signalled processes."""
        found = process.find(token)
        return sum(process.send(one, number) for one in found)

    @staticmethod
    def _pods(running: Running, one: Trial) -> list[dict[str, Any]]:
        """Return the true state of the pods of a trial, named by the journal."""
        with one.journal() as journal:
            tokens = {op.token for op in journal.ops()}
        return [pod for pod in running.truth()["pods"] if pod["name"] in tokens]

    def _judge(self, running: Running, trials: list[Trial]) -> None:
        ids = {pod["id"]: one for one in trials for pod in one.pods}
        created = [parse_iso(running.pod(pod_id)["created_at"]) for pod_id in ids]
        deadline = max(created, default=0.0) + LIMIT_S + LATE_S
        while (now := parse_iso(running.truth()["now"])) < deadline:
            time.sleep((deadline - now) / SPEED)
        for pod_id, one in ids.items():
            pod = running.pod(pod_id)
            until_s = parse_iso(pod["ended_at"]) if pod["ended_at"] else parse_iso(running.truth()["now"])
            over_s = until_s - parse_iso(pod["created_at"]) - LIMIT_S
            if one.kind == "both":
                if pod["ended_at"]:
                    raise Wrong(f"{one.run}: no end lives, and its pod was ended by {pod['ended_by']}")
                pod = self._looked_at(running, one, pod_id)
            else:
                self.worst_s = max(self.worst_s, over_s)
                if over_s > LATE_S:
                    seen = timer_files(running, pod_id)
                    raise Wrong(f"{one.run}, {one.kind} at {one.stage}: {over_s:.0f} s beyond its limit: {pod}; {seen}")
            self.ended_by[f"{one.kind}: {pod['ended_by']}"] += 1
        if running.truth()["billing"]:
            raise Wrong(f"a pod bills of which no trial knows: {running.truth()['pods']}")

    @staticmethod
    def _looked_at(running: Running, one: Trial, pod_id: str) -> dict[str, Any]:
        """Look as the next `inv` command does, which ends pods beyond their limit; return the pod afterwards."""
        vendor = open_market("runpod", one.settings())
        with one.journal() as journal:
            reap.reap(vendor, journal)
        pod = running.pod(pod_id)
        if not pod["ended_at"]:
            raise Wrong(f"{one.run}: a look from outside has not ended its pod: {pod}")
        return pod


def stop(token: str, but: bytes = b"") -> None:
    """Stop every process with the token, including new child processes; skip processes with the command line `but`."""
    stopped: set[process.Identity] = set()
    while left := [it for it in process.find(token) if it not in stopped]:
        for it in left:
            if not but or but not in command_line(it.pid):
                process.send(it, signal.SIGSTOP)
        stopped.update(left)


def stop_machine(pods: Path, pod_id: str, token: str) -> None:
    """Stop all processes in the rehearsed machine of the job with the token: sshd, timer, guard."""
    (folder,) = pods.glob(f"{pod_id}-*")
    for one in (token, (folder / "token").read_text()):
        stop(one, but=b"infra.rehearsal.init")  # not part of the machine: ends the processes of a removed machine


def timer_of(home: Path) -> int:
    """Return the process id of the living timer of a container; 0 without a timer."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        number = int((home / FOLDER / ALIVE).read_text().split()[0])
        return number if process.identify(number) else 0
    return 0


def timer_files(running: Running, pod_id: str) -> str:
    """Return the files of a container's timer and the current time, as text for a complaint."""
    folders = Path(running.about["state"]).glob(f"pods/{pod_id}-*/home/{FOLDER}")
    said = {one.name: one.read_text().strip() for folder in folders for one in folder.iterdir()}
    return f"timer: {said}, now {time.time():.1f}"


def end_timer(home: Path) -> int:
    """Kill the timer of a container and remove the files; count the timers: the start command restarts a timer."""
    killed, quiet_since = set[int](), time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        if timer := timer_of(home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(timer, signal.SIGKILL)
            killed.add(timer)  # a killed process may live on for a moment
            quiet_since = time.monotonic()
        time.sleep(0.01)
    shutil.rmtree(home / FOLDER, ignore_errors=True)
    return len(killed)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ends", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="of launches, guards, timers (%(default)s)")
    parser.add_argument("--seed", type=int, help=f"by default {seeds.VARIABLE}, or the one of every day")
    flags = parser.parse_args(words)
    rig = Rig(seeds.seed() if flags.seed is None else flags.seed)
    print(f"seed {rig.seed}", flush=True)
    try:
        rig.run(flags.kills, lambda line: print(line, flush=True))
    except Wrong as wrong:
        print(f"FAILED (seed {rig.seed}): {wrong}", flush=True)
        return 1
    print(f"ended: {dict(rig.ended_by)}")
    print(
        f"{sum(rig.kills.values())} kills, 0 pods beyond their limits; the latest {rig.worst_s:.0f} s after its limit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
