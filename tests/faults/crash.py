"""Crash trials of renting: kill renting, ending and sweeping processes at any point, on a market that loses answers.

    python -m tests.faults.crash --trials 1000 --seed 7 [--provider shadeform]

Each trial forks a process that runs the product's own `pods.rent`, `pods.end` and `reconcile` against a vendor's
rehearsal server. The trial kills the process (SIGKILL) at a labelled point, or up to half a second later. Then sweeps
run until no row is open, and the true state must agree with the journal: no orphan, no machine made twice, no running
machine recorded as gone. Prints the number of kills at each point; continues until each point had a kill, and fails if
a point is never reached.
"""

import argparse
import importlib
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from infra.ledger.journal import Journal, JournalError
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import Op
from infra.ledger.reconcile import ReconcileResult, reconcile
from infra.names import new_token
from infra.providers import Market
from infra.records import Offer
from infra.runs import pods
from tests import seeds
from tests.faults.lives import Blow, Life, Tell, live
from tests.faults.points import Points, WatchedJournal, watch_requests
from tests.faults.rented import (
    VENDORS,
    Judge,
    Stage,
    Wrong,
    end_all,
    environ,
    hold_still,
    order,
    plant,
    stage,
    true_monotonic,
    true_sleep,
)

LOOK_AROUND = 12  # the first trials, without a kill
PER_WORLD = 150  # trials before a rig is replaced, because too many ended machines slow the rig down
LONGEST_S = 0.5  # between a point and its kill
SWEEPS = 40  # until the world is at rest
ATTEMPT_S = 0.5
# Points of every renting; a kill must also have hit every other point passed by a trial.
PROTOCOL = frozenset(
    f"{when} {what}"
    for names, moments in (
        (("plan", "sending", "created", "unclear", "found", "refused", "end", "gone", "absent", "unsent", "claim"),
         ("before", "commit", "after")),
        (("create", "delete", "list", "find"), ("before", "sent", "answered")),
    )
    for what in names for when in moments
)  # fmt: skip
ANSWERS = (
    {"kind": "lost"}, {"kind": "error but done"}, {"kind": "error but done", "status": 504}, {"kind": "torn"},
    # A Lium 409 is a definite refusal, in Lium's words.
    {"kind": "error but done", "status": 409, "vendor": "shadeform"},
    {"kind": "late", "delay_s": 2 * ATTEMPT_S}, {"kind": "dropped"}, {"kind": "error"}, {"kind": "throttle"},
    {"kind": "throttle", "retry_after_s": 90},
    # Refusals: no stock, no money, a key or a firewall, a wrong request of ours, a retired API.
    *({"kind": "error", "status": status} for status in (400, 402, 403, 409, 410, 422)),
)  # fmt: skip
UNSENT = ("after plan", "after sending", "before create")
EARLY = ("after plan", "after sending", "before create", "sent create", "answered create", "commit end")
NOISE = ("lost", "error", "torn", "throttle", "dropped", "error but done")


@dataclass(frozen=True)
class Renting:
    """The functions on trial."""

    rent: Callable[..., Op] = pods.rent
    end: Callable[..., Op] = pods.end
    reconcile: Callable[..., ReconcileResult] = reconcile
    watched: Callable[[Path, Mapping[str, str], Points], Any] = WatchedJournal.at

    def open(self, path: Path, environ: Mapping[str, str]) -> Any:
        return self.watched(path, environ, Points(lambda label, nth: None))


@dataclass
class Desk:
    """An installation with a vendor."""

    stage: Stage
    renting: Renting
    folder: Path
    vendor_name: str
    offers: list[Offer]

    @property
    def path(self) -> Path:
        return self.folder / "state" / "slipway" / "journal.sqlite"

    def journal(self) -> Any:
        return self.renting.open(self.path, environ(self.folder))

    def vendor(self, attempt_s: float = 20.0) -> Market:
        return self.stage.vendor(self.vendor_name, self.path, attempt_s)

    def session(self, chance: random.Random, points: Points, tell: Tell) -> None:
        """Run two launches, end a pod, and sweep in between: an hour of a user's work."""
        vendor = self.vendor(ATTEMPT_S)
        with self.renting.watched(self.path, environ(self.folder), points) as journal:
            watch_requests(points)
            self._sweep(vendor, journal)
            for run in ("brave-otter-1", "calm-heron-2"):
                request, job = order(self.vendor_name, run)
                try:
                    op = self.renting.rent(vendor, request, chance.choice(self.offers), job, journal)
                    tell("rented", op.token)
                except SlipwayError:
                    pass  # the journal has the reason, or nothing was created
            live = [op for op in journal.ops() if op.is_live]
            if live:
                op = chance.choice(live)
                tell("end", op.token)
                for _ in range(3):
                    try:
                        self.renting.end(vendor, journal.op(op.token), journal)
                        break
                    except SlipwayError:
                        self.stage.move(45)
            self._sweep(vendor, journal)

    def sweeps(self, points: Points, tell: Tell) -> None:
        vendor = self.vendor(ATTEMPT_S)
        with self.renting.watched(self.path, environ(self.folder), points) as journal:
            watch_requests(points)
            for seconds in (0, 61, 61, 0):
                self.stage.move(seconds)
                self._sweep(vendor, journal)

    def _sweep(self, vendor: Market, journal: Journal) -> None:
        try:
            self.renting.reconcile(vendor, journal)
        except LeaseHeld:
            raise Wrong("a dead process holds its lease") from None


@dataclass(frozen=True)
class Recipe:
    """The events of a trial besides the kill, drawn from the seed of the trial."""

    seed: int
    early: Blow | None = None  # ends of a first life; the killed process sweeps the machines of the first life
    pause_s: float = 0.0  # between the two lives
    has_orphan: bool = False
    rules: tuple[dict[str, Any], ...] = ()
    machines: tuple[dict[str, Any], ...] = ()
    lag_s: int = 0
    page_size: int = 0

    @staticmethod
    def of(seed: int) -> "Recipe":
        """Return one of four kinds of recipes, so that trials reach every point.

        The kinds: launches, launches with faults, sweeps on a market with faults, and sweeps on a market without faults
        after the settle time.
        """
        chance, kind = random.Random(seed), seed % 4
        creates = [
            {"call": "create", "skip": chance.randint(0, 1), **chance.choice(ANSWERS)}
            for _ in range(chance.randint(kind == 1, 2))
        ]
        noise = [
            {"call": call, "kind": chance.choice(NOISE), "count": None, "chance": likely}
            for call, likely in (("list", 0.15), ("find", 0.15), ("delete", 0.5), ("keys", 0.05))
            if kind < 3 and chance.random() < 0.6
        ]
        early = Blow(chance.choice(UNSENT if kind == 3 else EARLY), 1, 0.0)
        if chance.random() < 0.2:
            early = Blow("", chance.randint(1, 120), 0.0)
        return Recipe(
            seed,
            early=early if kind >= 2 else None,
            pause_s=700 if kind == 3 else chance.choice([0, 30, 130, 700]),
            has_orphan=chance.random() < (0.5 if kind >= 2 else 0.1),
            rules=(*creates, *noise),
            machines=({"trait": "ghost"},) if chance.random() < (0.5 if kind == 1 else 0.1) else (),
            lag_s=chance.choice([0, 0, chance.randint(1, 120)]),
            page_size=chance.randint(0, 2),
        )

    def chance(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def spoil(self, here: Stage) -> None:
        lags = dict.fromkeys(VENDORS, self.lag_s)
        here.fault(*self.rules, machines=self.machines, listing_lag_s=lags, page_size=self.page_size)


@dataclass
class Rig:
    renting: Renting
    seed: int
    providers: tuple[str, ...] = VENDORS
    is_full: bool = False  # soon, by a full disk
    full: int = 0  # sessions ended by this error
    kills: Counter[str] = field(default_factory=Counter)
    seen: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # label: seeds, number of passes

    def run(self, trials: int, say: Callable[[str], None]) -> None:
        """Run the trials. Raises Wrong, with the trial's seed and point."""
        begun, chance = 0, random.Random(self.seed)
        while not self._is_enough(trials):
            with (
                tempfile.TemporaryDirectory(prefix="crash-", ignore_cleanup_errors=True) as name,
                stage(Path(name), self.seed) as here,
            ):
                here.keep_time()
                folder = Path(name)
                offers = {name: here.vendor(name, folder / "x").offers(order(name, "r")[0]) for name in VENDORS}
                anybody = here.vendor(self.providers[0], folder / "x")
                foreign = plant(anybody, offers[anybody.name][0], new_token("zzzzzzzz")).pod_id
                for _ in range(PER_WORLD):
                    begun += 1
                    if begun > 3 * trials + 100:
                        raise Wrong(f"{begun} trials came to too few kills: {dict(self.kills)}")
                    seed, blow = self._choose(begun, chance)
                    name = self.providers[seed // 4 % len(self.providers)]
                    (folder / str(begun)).mkdir()
                    desk = Desk(here, self.renting, folder / str(begun), name, offers[name])
                    self._trial(desk, seed, blow, foreign, say)
                    if self._is_enough(trials):
                        break
        self._count(say)

    def _is_enough(self, trials: int) -> bool:
        """Return true after this many kills, with a kill at every point, including points found late."""
        return sum(self.kills.values()) >= trials and (self.is_full or not self._missed())

    def _missed(self) -> list[str]:
        return sorted(label for label in self.seen.keys() | PROTOCOL if not self.kills[label])

    def _choose(self, number: int, chance: random.Random) -> tuple[int, Blow]:
        """Return a seed and a blow: aim at the known point with the fewest kills, or look for new points."""
        delay_s = chance.choice([0.0, 0.0, LONGEST_S * chance.random() ** 3])
        if number <= LOOK_AROUND or chance.random() < (0.5 if PROTOCOL - self.seen.keys() else 0.1):
            seed = chance.getrandbits(32) // 4 * 4 + number % 4
            return seed, Blow("", 10_000 if number <= LOOK_AROUND else chance.randint(1, 120), delay_s)
        label = min(self.seen, key=lambda one: (self.kills[one], chance.random()))
        seed, times = chance.choice(self.seen[label][-20:])
        return seed, Blow(label, chance.randint(1, times), delay_s if self.kills[label] else 0.0)

    def _trial(self, desk: Desk, seed: int, blow: Blow, foreign: str, say: Callable[[str], None]) -> None:
        aim = f"aim: {blow.label or 'anything'} #{blow.nth} + {blow.delay_s * 1000:.0f} ms"
        try:
            life = self._lives(desk, Recipe.of(seed), blow, foreign)
        except Wrong as wrong:
            raise Wrong(f"{desk.vendor_name}, trial seed {seed}, {aim}: {wrong}") from None
        for one in set(life.labels):
            self.seen.setdefault(one, []).append((seed, life.labels.count(one)))
        if life.was_killed:
            self.kills[life.labels[-1]] += 1
        fell = f"killed at {life.labels[-1]}" if life.was_killed else "not killed"
        say(f"{desk.vendor_name}: seed {seed}: {fell} ({aim})")

    def _lives(self, desk: Desk, recipe: Recipe, blow: Blow, foreign: str) -> Life:
        """Run a trial; the kill is aimed at the last life. Raises Wrong."""
        here = desk.stage
        with desk.journal() as journal:
            judge = Judge(here, f"sw1-{journal.installation}-", frozenset([foreign]))
            if recipe.has_orphan:
                plant(desk.vendor(), desk.offers[0], new_token(journal.installation))
        recipe.spoil(here)

        def session(points: Points, tell: Tell) -> None:
            if not self.is_full:
                return desk.session(recipe.chance("session"), points, tell)
            # No room at all until a trial has found the disk full, so that a few trials are enough to reach a full
            # disk.
            _leave_room(desk, recipe.chance("room").randrange(80_000) if self.full else 0)
            try:
                desk.session(recipe.chance("session"), points, tell)
            except JournalError:
                tell("full", "")

        if recipe.early:
            self._live(desk, judge, session, recipe.early)
            here.move(recipe.pause_s)
            life = self._live(desk, judge, desk.sweeps, blow)
        else:
            life = self._live(desk, judge, session, blow)
        self._recover(desk, judge, recipe.chance("recovery"))
        return life

    def _live(self, desk: Desk, judge: Judge, work: Callable[[Points, Tell], None], blow: Blow) -> Life:
        """Run a life until the process is dead and every sent request has arrived."""
        here, is_in_flight = desk.stage, blow.label.startswith("sent")
        handled = len(here.calls()) if is_in_flight else 0
        life = live(work, blow)
        here.read_clock()
        deadline = true_monotonic() + 30
        while is_in_flight and len(here.calls()) - handled < sum(one.startswith("sent") for one in life.labels):
            assert true_monotonic() < deadline, "what was sent does not arrive"
            true_sleep(0.001)
        self.full += ("full", "") in life.told
        for what, token in life.told:
            (judge.acknowledged.add if what == "rented" else judge.acknowledged.discard)(token)
        return life

    def _recover(self, desk: Desk, judge: Judge, chance: random.Random) -> None:
        here, vendor = desk.stage, desk.vendor()
        with desk.journal() as journal:
            judge.at_any_time(journal.ops())
            for _ in range(chance.randint(0, 2)):
                self.renting.reconcile(vendor, journal)
                judge.at_any_time(journal.ops())
                here.move(chance.choice([5, 61, 300]))
            here.fault()
            self._rest(desk, vendor, journal, judge)
            judge.at_rest(journal.ops())
            judge.acknowledged.clear()  # the launch is dead, and the work never began, so the sweep may end the pod
            for op in journal.ops():
                if op.is_live:
                    try:
                        pods.settle(vendor, op, journal)
                    except SlipwayError:
                        here.move(45)
            end_all(here, vendor, journal, self.renting.end)
            self._rest(desk, vendor, journal, judge)
            judge.at_rest(journal.ops())
            if left := [op.token for op in journal.ops() if op.is_live]:
                raise Wrong(f"not ended: {left}")

    def _rest(self, desk: Desk, vendor: Market, journal: Journal, judge: Judge) -> None:
        quiet = 0
        for number in range(SWEEPS):
            done = self.renting.reconcile(vendor, journal)
            rows = journal.ops()
            judge.at_any_time(rows)
            quiet = quiet + 1 if hold_still(rows, done) else 0
            if quiet == 2:
                return
            desk.stage.move(700 if not number else 61)
        raise Wrong(f"no rest after {SWEEPS} sweeps: {done}, {[(op.token, op.state) for op in rows if op.is_live]}")

    def _count(self, say: Callable[[str], None]) -> None:
        labels = sorted(self.seen.keys() | PROTOCOL, key=lambda label: label.split()[::-1])
        say("kills at each point:")
        for label in labels:
            say(f"{self.kills[label]:6d}  {label}")
        if self.is_full:
            say(f"{self.full} sessions found the disk full")
            if not self.full:
                raise Wrong("no session found the disk full: too few trials")
        say(f"{sum(self.kills.values())} kills, 0 orphans, 0 duplicates, 0 early ends; seed {self.seed}")


def _leave_room(desk: Desk, more_bytes: int) -> None:
    """Limit every file of this process to the size of the journal's log plus some room."""
    with desk.journal():
        log_bytes = desk.path.with_name(f"{desk.path.name}-wal").stat().st_size
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes + more_bytes, most))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crash", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=1000, metavar="N", help="kills (%(default)s)")
    parser.add_argument("--seed", type=int, help=f"by default {seeds.VARIABLE}, or the one of every day")
    parser.add_argument("--provider", choices=VENDORS, default=None, help="otherwise all take turns")
    parser.add_argument(
        "--full", action="store_true", help="the journal's disk is full soon, and not every point is hit"
    )
    parser.add_argument("--renting", default="tests.faults.crash:Renting", help="what is on trial, MODULE:NAME")
    flags = parser.parse_args(words)
    flags.seed = seeds.seed() if flags.seed is None else flags.seed
    print(f"seed {flags.seed}", flush=True)
    module, _, name = flags.renting.partition(":")
    renting = getattr(importlib.import_module(module), name)()
    try:
        rig = Rig(renting, flags.seed, (flags.provider,) if flags.provider else VENDORS, flags.full)
        rig.run(flags.trials, lambda line: print(line, flush=True))
    except Wrong as wrong:
        print(f"FAILED (seed {flags.seed}): {wrong}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
