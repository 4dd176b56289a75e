"""Everything at once on a control host, with random SIGKILLs: runs, a service, a set of pods and a sweep.

    python -m tests.faults.together --kills 1000 --seed 11

Laptops type launches, a sweep and a set of pods through a control host, which also serves two replicas under load.
Meanwhile the rig kills random processes: supervisor, controller, gateway, the connection of a laptop, a launcher, an
agent, a guard; or the vendor takes a machine away. The trial has rounds: at the end of a round, the rig judges the
runs, the machines and the bills. A launch that was killed before the hand-over is no run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.ledger import service_rows
from infra.runs import run_rows
from serve.load import LoadTest
from tests import seeds
from tests.end_to_end.services import PROBE, Traffic
from tests.end_to_end.services import say as ask
from tests.packs.control_host.host_site import GPU, ControlBed, Wrong, chance_of, control_bed, kill, say, wait

SPEED = 20.0
TOKENS = 8
WORK_S = 8.0
EACH = 60  # kills in a round, at least
QUIET_S = 600.0  # for a round to finish without further kills
CRASH_LOOP = "the agent ended 5 times"
MOST_RECOVERIES = 5  # a run with this many restarts is given up, as promised
SELDOM = ("connection", "session", "agent", "guard")  # few exist, or the kill ends a whole command
VICTIMS = {
    "supervisor": ("scripts.runs.supervisor",),
    "controller": ("serve.controller ",),
    "gateway": ("serve.gateway_process",),
    "session": ("packs.control_host.control ", " run "),
    "connection": (),
    "launcher": ("invoke", " launch "),
    "sweep": ("invoke", " sweep "),
    "apply": ("invoke", " apply "),
    "agent": ("infra.agent", " run "),
    "guard": ("infra.agent", " guard "),
    "machine": (),
}


@dataclass
class Rig:
    site: ControlBed
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = chance_of(self.seed)

    def go(self, kills: int, until: float) -> None:
        """Run the rounds. Raise Wrong at the first violation."""
        here = self.site
        here.up()
        model = here.folder / "model"
        model.mkdir()
        (model / "fake.json").write_text(json.dumps({"words": [" A"], "token_s": 0.1}))
        (here.folder / "service.yaml").write_text(
            json.dumps({"service": {"readiness_probe": PROBE, "replicas": 2}, "slipway": {}})
        )
        up = here.laptop.json(
            "serve.up",
            "demo",
            "--model",
            str(model),
            "--provider",
            "local",
            "--config",
            str(here.folder / "service.yaml"),
        )
        self.url = up["endpoint"]
        number = 0
        while sum(self.kills.values()) < kills and time.monotonic() < until:
            number += 1
            self.round(number)
            self.tell(number)
        here.laptop.json("serve.down", "demo")
        here.check_nothing_left()
        wait(lambda: not self.engines(), "the end of the engines", 60)

    def tell(self, number: int) -> None:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills.items()))
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        say(
            f"round {number}: {sum(self.kills.values())} kills ({kinds}): 0 orphans, 0 duplicates, 0 early ends, "
            f"0 cut answers called whole; {counts}"
        )

    def round(self, number: int) -> None:
        here = self.site
        names = {f"r{number}-{vendor}": vendor for vendor in GPU}
        lines = {name: here.launch(name, vendor, WORK_S) for name, vendor in names.items()}
        lines["set"] = ["apply", self.set_of(number, 2), "--yes"]
        if number % 3 == 1:
            lines["sweep"] = ["sweep", self.sweep_of(number), "--provider", "lium", "--yes", "--spend-limit", "4"]
        begun = {name: self.begin(name, words) for name, words in lines.items()}
        time.sleep(self.chance.uniform(0, 20))
        load = LoadTest(url=self.url, model="demo", rate=1, duration_s=1, max_tokens=TOKENS)
        stop = threading.Event()
        told = threading.Thread(target=self.traffic, args=(load, stop))
        told.start()
        try:
            self.kill_some(EACH)
        finally:
            stop.set()
            told.join()
        for process in begun.values():
            if process.poll() is None and kill(process.pid):
                self.counts["commands still at work then"] += 1
        wait(lambda: all(one.poll() is not None for one in begun.values()), "the end of commands", QUIET_S)
        for name in names:
            wait(lambda: self.is_over(name), f"the end of {name}", QUIET_S, here.settle)  # noqa: B023
            self.judge(name)
        if "sweep" in lines:
            self.end_sweep(number, lines["sweep"])
        self.end_set(number)
        wait(lambda: not self.left(), "the end of all machines", QUIET_S, here.settle)
        self.check_service()

    # Typed commands.

    def begin(self, name: str, words: list[str]) -> "subprocess.Popen[bytes]":
        laptop = self.site.laptop
        line = [*laptop.prefix, sys.executable, "-m", "invoke", *words]
        with (self.site.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                line, env=laptop.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def set_of(self, number: int, size: int) -> str:
        path = self.site.folder / f"set{number}.yaml"
        each = {"gpu_type": "L40S", "gpu_count": 1, "ttl_hours": 20, "spend_limit": 20, "provider": "runpod"}
        path.write_text(json.dumps({"pods": [{"name": f"s{number}-{one}", **each} for one in range(size)]}))
        return str(path)

    def sweep_of(self, number: int) -> str:
        path = self.site.folder / f"rates{number}.yaml"
        each = {"profile": "tiny", "phase": "base", "gpu": GPU["lium"], "num-gpus": 1, "steps": 6, "save_every": 3}
        runs = [{"name": name, "seed": 10 * number + at} for at, name in enumerate("ab")]  # no files of them exist yet
        path.write_text(json.dumps({"each": each, "runs": runs}))
        return str(path)

    # Kills.

    def kill_some(self, count: int) -> None:
        """Kill `count` times; `inv status` runs now and then, and restarts all unattended work."""
        done, look = 0, self.begin("look", ["status"])
        while done < count:
            time.sleep(self.chance.choice([0.1, 0.5, 1.0, 2.0, 4.0]))
            if look.poll() is not None:
                look = self.begin("look", ["status"])
            for kind in self.chance.sample(list(VICTIMS), len(VICTIMS)):
                if self.kill_one(kind):
                    say(f"kill: {kind}")
                    self.kills[kind] += 1
                    done += 1
                    break
        look.wait()

    def kill_one(self, kind: str) -> bool:
        """Kill a process of this kind; return true if a process existed."""
        here = self.site
        if kind in SELDOM and self.chance.random() < 0.85:
            return False
        if kind == "machine":
            there = [one["id"] for one in here.market.truth()["pods"] if one["state"] == "running"]
            if not there or self.chance.random() < 0.8:  # each takes minutes of the market's clock to recover
                return False
            try:
                here.market.send_command("/preempt", {"id": self.chance.choice(there)})
            except UsageError:  # a request to end came in between
                return False
            return True
        if kind == "connection":
            found = here.host.sessions()
        elif kind in ("agent", "guard"):
            found = here.processes(*VICTIMS[kind])
        else:
            found = here.processes(*VICTIMS[kind], is_on_host=True)
        return bool(found) and kill(self.chance.choice(found))

    def traffic(self, load: LoadTest, stop: threading.Event) -> None:
        """Send requests to the service throughout: every complete answer has all of its tokens."""
        while not stop.is_set():
            try:
                with Traffic(load, clients=2) as traffic:
                    stop.wait(5)
            except AssertionError:
                continue  # no answer in time: the controller is restarting
            good = [one for one in traffic.heard if not one.failure]
            self.counts["answers"] += len(good)
            self.counts["answers cut"] += len(traffic.failures())
            if bad := [one for one in good if one.tokens != TOKENS]:
                self.counts["CALLED WHOLE"] += len(bad)

    # Invariants.

    def is_over(self, name: str) -> bool:
        row = self.site.row(name)
        return row is None or not row.is_live and (run_rows.is_over(row) or not self.is_kept(name))

    def is_kept(self, name: str) -> bool:
        """Return true if the run is still resumed: a row that ended without an outcome is between two machines."""
        return (
            f"keep:{name}" in self.site.journal.leases.held_names()
            or f"keep:{name}" in self.site.journal.leases.abandoned_names()
        )

    def judge(self, name: str) -> None:
        """Judge the runs. Raise Wrong for a lost run, or for a run with two concurrent processes."""
        rows = self.site.rows(run=name)
        if self.site.event_count(name, "twice"):
            raise Wrong(f"{name}: two worked on it at the same time")
        if not rows:
            return self.count("never begun")
        recoveries = max(one.recoveries for one in rows)
        self.counts["recoveries"] += recoveries
        if "succeeded" in (rows[-1].outcome, self.site.verdict(name)):
            if not self.site.event_count(name, "done"):
                raise Wrong(f"{name} is called succeeded, and its work was never done")
            return self.count("runs succeeded")
        if not self.site.was_handed_over(name):
            return self.count("runs cut off before the hand-over")
        if CRASH_LOOP in self.site.verdict(name, "reason"):
            return self.count("runs given up after 5 agents in 10 minutes")
        if recoveries >= MOST_RECOVERIES:
            return self.count("runs given up after 5 recoveries")
        ends = [(one.state, one.outcome, one.reason, one.recoveries) for one in rows]
        raise Wrong(f"{name} ended early: {ends}; see {self.site.folder}")

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def end_sweep(self, number: int, words: list[str]) -> None:
        """Finish the sweep without the process that typed it; type the sweep again if every process was killed."""
        trials = [f"rates{number}.{one}" for one in "ab"]
        deadline = time.monotonic() + QUIET_S
        while self.begin("sweep", words).wait(QUIET_S):
            if time.monotonic() > deadline:
                raise Wrong(f"the sweep of round {number}: {[self.site.rows(run=one) for one in trials]}")
        done = Counter(op.run for one in trials for op in self.site.rows(run=one) if op.outcome == "succeeded")
        # A machine may vanish after the last report of a run, before a process reads it: the sweep finds the artifact.
        told = {one for one in trials if self.site.verdict(one) == "succeeded"}
        if max(done.values(), default=0) > 1 or {*done} | told != {*trials}:
            raise Wrong(f"the sweep of round {number}: {[self.site.rows(run=one) for one in trials]}")
        self.counts["trials succeeded"] += len(trials)

    def end_set(self, number: int) -> None:
        """Complete the set of pods, in any state, and end the set."""
        here = self.site
        here.laptop.json("apply", self.set_of(number, 2), "--yes")
        live = [op.run for op in here.rows(live=True) if op.pod_set == f"set{number}" and op.state == "READY"]
        if sorted(live) != [f"s{number}-0", f"s{number}-1"]:
            raise Wrong(f"the set of round {number} is {live}")
        here.laptop.json("apply", self.set_of(number, 0), "--yes")
        self.counts["sets made whole"] += 1

    def left(self) -> list[Any]:
        rows = [op.run for op in self.site.rows(live=True) if not op.service]
        return [*rows, *self.site.billing()]

    def engines(self) -> list[int]:
        return self.site.processes("serve.fake", is_on_host=False)

    def check_service(self) -> None:
        """Check that both replicas serve again, and no process of a third replica runs."""
        if self.counts["CALLED WHOLE"]:
            raise Wrong(f"{self.counts['CALLED WHOLE']} answers were called whole, and were not")

        def is_whole() -> bool:
            row = service_rows.find(self.site.journal, "demo")
            live = [op.run for op in self.site.rows(live=True) if op.service == "demo"]
            return row is not None and len(live) == 2 and self.answers()

        wait(is_whole, "two replicas that serve", QUIET_S, self.site.settle)
        live = [op for op in self.site.rows(live=True) if op.service == "demo"]
        self.counts["times the service was whole"] += 1
        if len(live) != 2:
            raise Wrong(f"the service has {live}")

    def answers(self) -> bool:
        try:
            return {ask(self.url)[1] for _ in range(4)} != set()
        except OSError:
            return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--most-s", type=float, default=36000.0, help="begin no other round after so many seconds")
    words = parser.parse_args()
    until = time.monotonic() + words.most_s
    folder = Path(tempfile.mkdtemp(prefix="together-"))
    with control_bed(folder, SPEED) as here:
        rig = Rig(here, seeds.seed() if words.seed is None else words.seed)
        try:
            rig.go(words.kills, until)
        except Wrong as wrong:
            say(f"WRONG after {dict(rig.kills)}: {wrong}")
            for log in sorted(here.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}", flush=True)
            print(f"--- {here.places.log}\n{here.places.log.read_text()[-3000:]}", flush=True)
            return 1
    shutil.rmtree(folder)
    say(f"{sum(rig.kills.values())} kills, 0 orphans, 0 duplicates, 0 early ends, 0 cut answers called whole")
    return 0


if __name__ == "__main__":
    sys.exit(main())
