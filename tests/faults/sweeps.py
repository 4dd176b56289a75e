"""A sweep on a rehearsed market with killed processes and pods: each trial finishes once, and no limit is exceeded.

    python -m tests.faults.sweeps --trials 24 --pods 4 --kills 20 --seed 7

The product's own commands run: `inv sweep`, its launches, guards and agents on the pods, the supervisor. Every few
seconds the rig kills a process (SIGKILL), or the vendor takes a pod away. After the death of the sweep, the supervisor
continues the sweep; if the supervisor is dead too, the rig types the sweep again. Throughout, the rig reads the
reserved and spent money from the journal, and the bill of the market. SIGTERM ends the rig and all its processes.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.rehearsal import attach
from packs.sweeps.control.trials import resume_sweep
from tests import seeds
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.faults.rented import Wrong
from tests.processes import command_line, environ, pids

GPU = {"lium": "RTX4090,L40S", "runpod": "L40S", "shadeform": "L40S,A6000"}
SPEED = 10.0  # simulated seconds per second: a trial takes minutes of simulated time
EACH_USD = 2
LONGEST_S = 5400.0
LOOK_S = 0.5
UNATTENDED_S = 30.0  # an unattended sweep is typed again after this time
END_S = 300.0
VICTIMS = ("sweep", "launch", "agent", "guard", "pod", "supervisor")
WORDS = {  # text on the command line of each kind of process
    "sweep": ("invoke", " sweep "),
    "launch": ("invoke", " launch "),
    "agent": ("infra.agent", " run "),
    "guard": ("infra.agent", " guard "),
    "supervisor": ("scripts.runs.supervisor",),
}


@dataclass
class Rig:
    """An installation, its market, and the sweep."""

    user: Rehearsed
    chance: random.Random
    trials: int
    pods: int
    provider: str
    sweep: "subprocess.Popen[bytes] | None" = None
    killed: Counter[str] = field(default_factory=Counter)
    typed: int = 0
    most: int = 0
    """The most that was ever reserved and spent together, in micro-dollars."""

    @property
    def limit(self) -> int:
        return self.trials * EACH_USD * 1_000_000

    @property
    def log(self) -> Path:
        return self.user.folder / "sweep.log"

    def type_sweep(self) -> None:
        """Type the sweep, for the first time or again."""
        words = [
            "sweep",
            str(self.user.folder / "trials.yaml"),
            "--provider",
            self.provider,
            "--rehearse",
            "--yes",
            "--pods",
            str(self.pods),
            "--pack",
            "1",
            "--spend-limit",
            str(self.trials * EACH_USD),
        ]
        with self.log.open("ab") as log:
            self.sweep = subprocess.Popen(
                [sys.executable, "-m", "invoke", *words],
                env=self.user.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.typed += 1

    @functools.cached_property
    def journal(self) -> Journal:
        """Keep the journal open for this context: repeated opening and closing delays all other processes."""
        return Journal.open(self.user.world.folder / attach.JOURNAL)

    @property
    def states(self) -> Counter[str]:
        """Return the number of trials in each state."""
        return Counter(one["state"] for one in self.output["trials"])

    @property
    def output(self) -> dict[str, Any]:
        """Return the output of the sweep, which is empty before the first plan."""
        path = self.user.world.folder / "here" / "sweeps" / "trials" / "sweep.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"trials": []}

    def is_attended(self) -> bool:
        """Return true if a process works on the sweep."""
        if self.sweep is not None and self.sweep.poll() is None:
            return True
        return resume_sweep.is_at_work(self.journal)

    def end(self) -> None:
        """End all processes: the sweep and the supervisor first."""
        for kind in ("supervisor", "sweep", "launch", "supervisor"):
            for pid in self.processes(kind):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.sweep is not None:
            self.sweep.wait()
        self.user.run("down", "--all", "--rehearse")
        attach.stop(self.user.base)

    def processes(self, kind: str) -> list[int]:
        """Return the processes of a kind of this installation."""
        world = str(self.user.folder).encode()
        found = []
        for pid in pids():
            line = f" {command_line(pid).replace(bytes(1), b' ').decode(errors='replace')} "
            ours = world.decode() in line or world in environ(pid)
            if ours and all(word in line for word in WORDS[kind]):
                found.append(pid)
        return found

    def kill(self) -> str:
        """Kill a random process of this kind; return the kind, "" without a process."""
        kind = self.chance.choice(VICTIMS)
        if kind == "pod":
            there = [one["id"] for one in self.user.truth()["pods"] if one["state"] == "running"]
            if not there:
                return ""
            self.user.world.send_command("/preempt", {"id": self.chance.choice(there)})
        else:
            found = self.processes(kind)
            if not found:
                return ""
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(found), signal.SIGKILL)
        self.killed[kind] += 1
        return kind

    def look(self) -> None:
        """Check the invariants of every moment. Raises Wrong."""
        for one in budgets.budgets(self.journal):
            found = budgets.state(self.journal, one.name, SPEED)
            self.most = max(self.most, found.committed)
            if found.committed > one.amount:
                raise Wrong(f"{found.committed} of {one.amount} are spent and reserved")
        billed = sum(pod["billed_micro_usd"] for pod in self.user.truth()["pods"])
        if billed > self.limit:
            raise Wrong(f"the market has billed {billed} micro-USD, the limit is {self.limit}")

    def judge(self) -> str:
        """Check the final invariants; return the figures. Raises Wrong."""
        states, journal = self.states, self.journal
        done = Counter(op.run for op in journal.ops() if op.outcome == "succeeded")
        rented, live = sum(op.outlives_run for op in journal.ops()), [op.run for op in journal.ops(live=True)]
        recoveries = sum(max(op.recoveries for op in journal.ops(run=run)) for run in journal.runs())
        found = budgets.state(journal, "sweep:trials", SPEED)
        truth = self.user.truth()
        if states != {"succeeded": self.trials}:
            raise Wrong(f"trials ended otherwise: {dict(states)}")
        if max(done.values(), default=0) > 1:  # never: the store knows about a trial with a pod lost just afterwards
            raise Wrong(f"trials were done more than once: {dict(done)}")
        if live or truth["billing"]:
            raise Wrong(f"something is left: {live}, {truth['billing']} machines bill")
        if found.committed != found.spent:
            raise Wrong(f"{found.committed - found.spent} micro-USD are reserved for nobody")
        kills = ", ".join(f"{kind} {number}" for kind, number in sorted(self.killed.items()))
        return (
            f"{self.trials} trials on {self.pods} pods, {sum(self.killed.values())} kills ({kills}), typed "
            f"{self.typed} times, {rented} pods rented, {recoveries} recoveries, each trial done once, 0 lost; at most "
            f"{self.most / 1e6:.2f} of {self.limit / 1e6:.2f} USD reserved and spent, {found.spent / 1e6:.2f} spent"
        )


def document(trials: int, provider: str) -> dict[str, Any]:
    """Return the sweep: short runs of the smallest model with different seeds."""
    each = {"profile": "tiny", "phase": "base", "gpu": GPU[provider], "steps": 12, "save_every": 4}
    return {
        "name": "trials",
        "each": each,
        "runs": [{"name": f"t{number}", "seed": number} for number in range(trials)],
    }


def go(rig: Rig, kills: int) -> str:
    """Kill, look, and type again until the sweep has exited by itself; return the figures. Raises Wrong."""
    began = at = time.monotonic()
    deadline = began + LONGEST_S
    rig.type_sweep()
    attended_at = began
    while True:
        if rig.is_attended():
            attended_at = time.monotonic()
        elif rig.states == {"succeeded": rig.trials}:
            return rig.judge()
        elif time.monotonic() - attended_at > UNATTENDED_S:
            rig.type_sweep()
        if time.monotonic() > deadline:
            raise Wrong(f"not done within {LONGEST_S:g} s; see {rig.log}")
        rig.look()
        if sum(rig.killed.values()) < kills and time.monotonic() > at:
            at = time.monotonic() + rig.chance.uniform(1, 4)
            if rig.user.truth()["running"] and (kind := rig.kill()):  # otherwise only the typed process exists
                print(f"{time.monotonic() - began:.0f} s: kill {sum(rig.killed.values())}: {kind}", flush=True)
                at = time.monotonic() + rig.chance.uniform(3, 20)
        time.sleep(LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--provider", default="lium", choices=sorted(GPU))
    parser.add_argument("--seed", type=int)
    words = parser.parse_args()
    seed = seeds.seed() if words.seed is None else words.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sweep-faults-") as folder:
        user = Rehearsed(Path(folder), {**KEYS, "SLIPWAY_BOOT_S": "6000"})
        (user.folder / "trials.yaml").write_text(json.dumps(document(words.trials, words.provider)))
        attach.start(user.base, speed=SPEED)
        rig = Rig(user, random.Random(seed), words.trials, words.pods, words.provider)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            print(go(rig, words.kills), flush=True)
            return 0
        except Wrong as error:
            print(f"WRONG after {dict(rig.killed)}: {error}\n{rig.log.read_text()[-6000:]}", flush=True)
            return 1
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
            rig.end()


if __name__ == "__main__":
    sys.exit(main())
