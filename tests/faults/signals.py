"""Signals while renting: one or two signals reach `inv pod.create` at any point, or the reader of its output leaves.

    python -m tests.faults.signals --rounds 3 --seed 7

Each trial forks a process that runs the whole program against a vendor's rehearsal server. The process does one of
KINDS to itself at a labelled point. Then, before any sweep, the true state must agree with the journal and the output:
the pod is rented and at work, or proven gone; the output names every other machine, with the command that ends it.
"""

import argparse
import contextlib
import functools
import importlib
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import infra.ledger.journal
from infra.agent.limits import Clocks, read_clocks
from infra.ledger.journal import Journal
from infra.ledger.op import READY
from infra.ledger.reconcile import reconcile
from infra.runs import renting
from infra.settings import VENDORS as KEYS
from scripts.cli import invoke_patch
from tests import seeds
from tests.faults.lives import Tell, fork
from tests.faults.points import Points, WatchedJournal, watch_requests
from tests.faults.rented import VENDORS, Judge, Machine, Stage, Wrong, environ, hold_still, stage
from tests.world import ROOT, World

SPEED = 600.0
BOOT_S = 60.0  # of real time: the default limit of a boot would be 1.5 s at this speed
RUN = "brave-otter-1"
KINDS = {  # with the exit codes of each kind; 0 for the last kind if no output was left to write
    "INT": (130,), "INT INT": (130,), "TERM": (143,), "HUP": (129,), "TERM INT": (130, 143), "closed": (141, 0),
}  # fmt: skip
# One signal must interrupt no call that the vendor answers. Two signals stop the program at once.
ONCE = ("INT", "TERM", "HUP")
GONE_S = 40  # simulated; a vendor deletes for half a minute


@dataclass(frozen=True)
class Manners:
    """The parts of the program on trial, as shipped."""

    heed: Callable[..., contextlib.AbstractContextManager[None]] = invoke_patch.raise_on_signals
    finishing: Callable[..., contextlib.AbstractContextManager[None]] = renting.defer_interrupts
    tells: bool = True


@dataclass(frozen=True)
class Deaf(Manners):
    """Known to be bad: reacts to Ctrl-C only."""

    heed: Callable[..., contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def at_once(*_: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True)
class TornOff(Manners):
    """Known to be bad: a signal interrupts at once, even during an answer of a vendor."""

    finishing: Callable[..., contextlib.AbstractContextManager[None]] = at_once


@dataclass(frozen=True)
class Silent(Manners):
    """Known to be bad: leaves without output."""

    tells: bool = False


@dataclass(frozen=True)
class Left:
    """The end of a trial's process."""

    code: int  # negative: killed by this signal
    points: tuple[str, ...]
    was_struck: bool
    said: str


def clocks_in(seconds: float) -> Clocks:
    now = read_clocks()
    return replace(now, boot_s=now.boot_s + seconds, wall_s=now.wall_s + seconds)


@dataclass
class Rig:
    here: Stage
    manners: Manners
    folder: Path
    struck: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def look_around(self, vendor: str) -> dict[str, int]:
        """Return the number of passes of each point in a run without signals."""
        left = self.trial(vendor, "INT", "", 0)
        if left.code != 0:
            raise Wrong(f"{vendor}: undisturbed, it leaves with exit code {left.code}: {left.said}")
        return dict(Counter(left.points))

    def trial(self, vendor: str, kind: str, label: str, nth: int) -> Left:
        """Run a trial. Raises Wrong, with the output of the program."""
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        left = self._live(vendor, kind, label, nth, folder)
        try:
            self._judge(vendor, kind, label, left, folder)
        except Wrong as wrong:
            told = f"{vendor}, {kind} at {label} #{nth}, exit code {left.code}: {wrong}\nit had said:\n{left.said}"
            raise Wrong(told) from None
        self.struck[label] += left.was_struck
        return left

    def _live(self, vendor: str, kind: str, label: str, nth: int, folder: Path) -> Left:
        child = fork(lambda tell: self._run(vendor, kind.split(), label, nth, folder, tell))
        lines, code = child.leave(120)
        World(folder).kill()  # the supervisor that the program left behind: the judge needs a world at rest
        points = tuple(about for what, about in lines if what == "at")
        codes = [int(about) for what, about in lines if what == "exit"]
        words = (folder / "said").read_text()
        return Left(codes[0] if codes else code, points, ["struck", label] in lines, words)

    def _run(self, vendor: str, blows: list[str], label: str, nth: int, folder: Path, tell: Tell) -> None:
        """Run the program in the child until the program exits."""
        waiting = list(blows)

        def passed(here: str, times: int) -> None:
            tell("at", here)
            is_first = len(waiting) == len(blows) and (here, times) == (label, nth)
            if is_first:
                tell("struck", label)
            if waiting and (is_first or len(waiting) < len(blows)):
                strike(waiting.pop(0), is_in_callback=here.startswith("commit"))

        points = Points(passed)
        os.environ.update(self._environ(vendor, folder))
        opened = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(opened, number)
        renting.defer_interrupts, invoke_patch.raise_on_signals = self.manners.finishing, self.manners.heed
        if not self.manners.tells:
            importlib.import_module("scripts.cli.session").print_unsupervised_pods = lambda: None

        def watched(path: Path, environ: object = os.environ) -> WatchedJournal:
            return WatchedJournal.at(Path(path).absolute(), dict(os.environ), points)

        infra.ledger.journal.Journal.open = staticmethod(watched)  # type: ignore[method-assign,assignment]
        watch_requests(points)
        running = importlib.import_module("invoke.main").program
        os.chdir(ROOT)
        sys.argv = [
            "inv",
            "pod.create",
            "--provider",
            vendor,
            "--gpu",
            "L40S",
            "--num-gpus",
            "1",
            "--run-name",
            RUN,
            "--ttl",
            "24h",
            "--no-accept",
            "--yes",
        ]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        try:
            running.run(sys.argv)
        except SystemExit as leaving:
            tell("exit", str(leaving.code if isinstance(leaving.code, int) else bool(leaving.code) + 0))

    def _environ(self, vendor: str, folder: Path) -> dict[str, str]:
        found = {
            **environ(folder),
            "SLIPWAY_CLOCK_SCALE": str(SPEED),
            "SLIPWAY_BOOT_S": f"{BOOT_S * SPEED:.0f}",
            "SLIPWAY_PODS": str(folder / "pods"),
            "SLIPWAY_STATE_FILE": str(journal_of(folder)),
            "SLIPWAY_STORE": str(folder / "store"),
            "SLIPWAY_SPEND_CAP_USD": "",
            "SLIPWAY_REHEARSAL": "",
        }
        for name, key in KEYS.items():
            about = self.here.running.about[name]
            found |= {f"SLIPWAY_{name.upper()}_URL": about["url"], key.upper(): about["key"] if name == vendor else ""}
        return {name: value for name, value in found.items() if value or name.endswith("KEY")}

    def _judge(self, vendor: str, kind: str, label: str, left: Left, folder: Path) -> None:
        with Journal.open(journal_of(folder), environ(folder)) as journal:
            prefix, rows = f"sw1-{journal.installation}-", journal.ops()
            judge = Judge(self.here, prefix)
            judge.at_any_time(rows)
            there = [one for one in self.here.machines(prefix) if one.exists]
            if not left.was_struck and left.code != 0:
                raise Wrong("no signal struck")
            if left.was_struck:
                self._judge_words(kind, label, left, there, {op.token: op.state for op in rows if op.is_live})
            provider = self.here.vendor(vendor, journal_of(folder), clock_scale=SPEED)
            for number in range(60):
                done = reconcile(provider, journal, functools.partial(clocks_in, 61.0 * number))
                judge.at_any_time(journal.ops())
                if hold_still(journal.ops(), done):
                    break
                self.here.running.move(400)
            else:
                raise Wrong(f"no rest: {done}")
            judge.at_rest(journal.ops())
            for one in self.here.machines(prefix):
                if one.exists:
                    provider.delete(one.machine_id)

    def _judge_words(self, kind: str, label: str, left: Left, there: list[Machine], live: dict[str, str]) -> None:
        is_late = left.code == 0 and label.startswith("commit")  # the signal came after the last line of output
        if left.code not in KINDS[kind] and not is_late:
            raise Wrong(f"exit codes of {kind} are {KINDS[kind]}")
        unnamed = {one.token for one in there} - live.keys()
        if unnamed:
            raise Wrong(f"{sorted(unnamed)} bill, and no live row names them")
        at_work = [state for state in live.values() if state == READY]
        if left.code == 0 and len(at_work) != 1:
            raise Wrong(f"it says that all is well, and there is: {live}")
        if kind in ONCE and (left.code == 0) is not bool(at_work) and set(live.values()) - {READY}:
            raise Wrong(f"one signal leaves behind {live}")
        if kind in ONCE and len(there) != len(at_work):
            raise Wrong(f"one signal leaves behind {there}, rows: {live}")
        if kind != "closed" and left.code != 0 and live and f"inv down {RUN}" not in left.said:
            raise Wrong(f"nobody was told of {live}")


def journal_of(folder: Path) -> Path:
    return folder / "state" / "journal.db"


def strike(blow: str, is_in_callback: bool) -> None:
    """Strike this process; from outside if SQLite's callback would swallow the exception."""
    if blow == "closed":
        ear, mouth = os.pipe()
        os.close(ear)
        for number in (1, 2):
            os.dup2(mouth, number)
    elif is_in_callback:
        os.posix_spawn("/bin/sh", ["sh", "-c", f"kill -{blow} {os.getpid()}"], os.environ)
    else:
        os.kill(os.getpid(), getattr(signal, f"SIG{blow}"))


def run(
    rig: Rig,
    chance: random.Random,
    rounds: int,
    say: Callable[[str], None],
    most: int = 0,
    kind: str = "",
    at: str = "",
) -> None:
    """Run every kind at every point of a vendor in turn, for `rounds`. Raises Wrong.

    `most`: trials per vendor, if not 0. `kind`, `at`: only this kind, only at this point.
    """
    vendors = list(VENDORS)
    chance.shuffle(vendors)
    known = {name: rig.look_around(name) for name in (vendors if not most else vendors[:1])}
    trials = [
        (name, blow, label, times)
        for turn in range(rounds)
        for place, name in enumerate(known)
        for label, times in known[name].items()
        for number, blow in enumerate(KINDS)
        if most or (number + turn) % len(known) == place
    ]
    trials = [one for one in trials if kind in ("", one[1]) and at in ("", one[2])]
    chance.shuffle(trials)
    missed: Counter[str] = Counter()
    for name, blow, label, times in trials[: most or None]:
        nth = chance.choice([1, times, chance.randint(1, times)])
        left = rig.trial(name, blow, label, nth)
        if nth > 1 and not left.was_struck:  # the number of looks depends on the speed of the vendor
            left = rig.trial(name, blow, label, nth := 1)
        missed[label] += not left.was_struck
        say(f"{name}: {blow} at {label} #{nth}: exit code {left.code}{'' if left.was_struck else ', not struck'}")
    say("struck at each point:")
    for label in sorted(rig.struck | missed, key=lambda label: label.split()[::-1]):
        if label:
            say(f"{rig.struck[label]:6d}  {label}")
    never = [label for label in missed if label and not rig.struck[label]]
    if never:
        raise Wrong(f"never struck: {never}")
    say(f"{sum(rig.struck.values())} signals: every pod is at work, proven gone, or named")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.signals", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="at every point (%(default)s)")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="trials, drawn from all of them")
    parser.add_argument("--seed", type=int, help=f"by default {seeds.VARIABLE}, or the one of every day")
    parser.add_argument("--manners", default="tests.faults.signals:Manners", help="what is on trial, MODULE:NAME")
    parser.add_argument("--kind", choices=[*KINDS, ""], default="", help="only this")
    parser.add_argument("--at", default="", metavar="POINT", help="only there")
    flags = parser.parse_args(words)
    flags.seed = seeds.seed() if flags.seed is None else flags.seed
    print(f"seed {flags.seed}", flush=True)
    module, _, name = flags.manners.partition(":")
    manners = getattr(importlib.import_module(module), name)()
    for heavy in ("tasks", "scripts.pods.create", "httpx", "rich.console", "paramiko", "fabric"):
        importlib.import_module(heavy)
    with tempfile.TemporaryDirectory(prefix="signals-") as text:
        folder = Path(text)
        with stage(folder, flags.seed, SPEED, boots=True) as here:
            try:
                run(
                    Rig(here, manners, folder),
                    random.Random(flags.seed),
                    flags.rounds,
                    lambda line: print(line, flush=True),
                    flags.most,
                    flags.kind,
                    flags.at,
                )
            except Wrong as wrong:
                print(f"FAILED (seed {flags.seed}): {wrong}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
