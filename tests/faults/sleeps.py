"""A laptop that sleeps while renting or keeping a run: the world runs for hours, and other processes act meanwhile.

    python -m tests.faults.sleeps --trials 200 --seed 7

Each trial forks a process in a separate process group. The process launches a run, or resumes a run with a lost pod. At
some point the trial stops the process (SIGSTOP), resets the connections, and moves the wall clock by hours but not the
monotonic clock: a suspended machine behaves the same. Meanwhile a user ends the run, or a process sweeps, or a second
keeper takes the lease. After wake-up the process must not act on old knowledge: no ended pod exists again, no machine
is made twice, and no pod is taken from its owner.
"""

import argparse
import contextlib
import importlib
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.errors import SlipwayError
from infra.interrupts import WorkTakenOver
from infra.ledger.journal import Journal
from infra.ledger.leases import Lease, LeaseHeld, keeper_lease
from infra.ledger.op import Op
from infra.ledger.reconcile import reconcile
from infra.providers import Market
from infra.runs import pods
from infra.runs.keepers import keeper as keep
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.renting import Terms
from infra.runs.run_home import RunHome
from tests import seeds
from tests.faults.crash import Renting
from tests.faults.lives import Tell, fork
from tests.faults.points import Points, WatchedJournal, WatchedLeases, watch_requests
from tests.faults.rented import (
    VENDORS,
    Judge,
    Stage,
    Wrong,
    end_all,
    environ,
    hold_still,
    order,
    stage,
    true_monotonic,
)

RUN = "brave-otter-1"
PER_WORLD = 100
PATIENCE_S = 60.0
MEANWHILE = ("nothing", "sweeps", "ended", "ended and swept", "taken over")
HOURS_S = (60, 700, 3 * 3600, 11 * 3600)


class Unfenced(WatchedJournal):
    """Known to be bad: the last write wins, whichever row the writer had read."""

    def advance(self, op: Op, event: str, **facts: Any) -> Op:
        now = self.op(op.token)
        return super().advance(replace(op, epoch=now.epoch), event, **facts)

    def _change(self, op: Op, event: str, facts: dict[str, Any]) -> Op:
        now = self.op(op.token)
        return super()._change(replace(op, epoch=now.epoch, state=now.state), event, facts)

    @staticmethod
    def at(path: Path, environ: Any, points: Points) -> WatchedJournal:
        made = WatchedJournal.at(path, environ, points)
        made.__class__ = Unfenced
        return made


class Timed(WatchedJournal):
    """Known to be bad: a process keeps every lease for ever."""

    @staticmethod
    def at(path: Path, environ: Any, points: Points) -> WatchedJournal:
        made = WatchedJournal.at(path, environ, points)
        made.__class__ = Timed
        return made

    @property
    def leases(self) -> WatchedLeases:
        return Believed(self)


class Believed(WatchedLeases):
    """Leases safe from every other process."""

    def renew(self, lease: Lease) -> Lease:
        return Lease(lease.name, self._lease(lease.name)[0])

    def is_ours(self, lease: Lease) -> bool:
        return True


@dataclass(frozen=True)
class Forgiving(Renting):
    watched: Callable[..., Any] = Unfenced.at


@dataclass(frozen=True)
class Believing(Renting):
    watched: Callable[..., Any] = Timed.at


class Wire:
    """The connection between the laptop and a vendor; trials can cut the connection."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        self.to, self.is_cut = (there.hostname or "", there.port or 80), False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = there._replace(netloc=f"127.0.0.1:{self.server.getsockname()[1]}").geturl()
        self.open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset both ends, and let no connection through until the wire is mended."""
        self.is_cut = True
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.server.close()

    def _accept(self) -> None:
        while True:
            try:
                near = self.server.accept()[0]
            except OSError:
                return  # closed
            if self.is_cut:
                near.close()
                continue
            far = socket.create_connection(self.to)
            for source, sink in ((near, far), (far, near)):
                self.open.add(source)
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
        self.open.discard(source)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@dataclass
class Trial:
    """An installation, a vendor, a sleeping process."""

    here: Stage
    renting: Renting
    folder: Path
    vendor_name: str
    chance: random.Random
    wire: Wire
    was_told: bool = False  # asked to leave while asleep
    known: set[str] | None = None  # tokens at the time of the takeover of the lease

    @property
    def path(self) -> Path:
        return self.folder / "state" / "slipway" / "journal.sqlite"

    def vendor(self, url: str = "") -> Market:
        about = self.here.running.about[self.vendor_name]
        before = about["url"]
        about["url"] = url or before
        try:
            return self.here.vendor(self.vendor_name, self.path, 2.0)
        finally:
            about["url"] = before

    def run(self, is_keeper: bool, nth: int, meanwhile: str) -> str:
        """Return the point of the sleep, "" if the process finished first. Raises Wrong."""
        with self.renting.open(self.path, environ(self.folder)) as journal:
            judge = Judge(self.here, f"sw1-{journal.installation}-")
            if is_keeper:
                self._lose_pod(journal)
            sleeper = fork(lambda tell: self._live(is_keeper, nth, tell))
            said, ended = b"", set[str]()
            while chunk := sleeper.hear(true_monotonic() + PATIENCE_S):
                said += chunk
                if b"asleep\t" in chunk:
                    os.waitpid(sleeper.pid, os.WUNTRACED)
                    ended = self._meanwhile(journal, meanwhile, sleeper.pid)
                    judge.at_any_time(journal.ops())
                    self.wire.is_cut = False
                    os.killpg(sleeper.pid, signal.SIGCONT)
            sleeper.end(0, -signal.SIGTERM)
            lines = [line.split("\t") for line in said.decode().splitlines()]
            where = next((about for what, about in lines if what == "asleep"), "")
            self._judge(journal, judge, ended)
            return where

    def _lose_pod(self, journal: Journal) -> None:
        """Set up a run that has lost its pod."""
        vendor = self.vendor()
        request, job = order(self.vendor_name, RUN)
        op = pods.rent(
            vendor, request, vendor.offers(request)[0], job, journal, pods.RowDraft(store=str(self.folder / "store"))
        )
        op = journal.note(journal.advance(op, "armed"), address="ssh://root@127.0.0.1:1/nowhere", last_seen_at=1)
        vendor.delete(op.remote_id or "")
        self.here.move(200)

    def _live(self, is_keeper: bool, nth: int, tell: Tell) -> None:
        """Run the sleeping process. Only the wall clock and the boot clock count the time asleep."""
        os.setpgid(0, 0)
        awake_s = [0.0]
        time.monotonic = lambda: true_monotonic() + awake_s[0]

        def sleep(seconds: float) -> None:
            awake_s[0] += seconds
            self.here.sleep(seconds)

        time.sleep = sleep
        passed = 0

        def nap(label: str, _: int) -> None:
            nonlocal passed
            is_open = not label.startswith("commit")  # holds the journal's lock
            passed += is_open
            if passed == nth and is_open:
                tell("asleep", label)
                os.killpg(0, signal.SIGSTOP)

        points = Points(nap)
        with self.renting.watched(self.path, environ(self.folder), points) as journal:
            vendor = self.vendor(self.wire.url)
            watch_requests(points)
            with contextlib.suppress(SlipwayError, WorkTakenOver):  # the journal has the reason
                (self._keep if is_keeper else self._launch)(vendor, journal)

    def _launch(self, vendor: Market, journal: Any) -> None:
        request, job = order(self.vendor_name, RUN)
        for offer in vendor.offers(request)[:2]:
            with contextlib.suppress(pods.StillBills):
                self.renting.reconcile(vendor, journal)
                self.renting.rent(vendor, request, offer, job, journal)
                return

    def _keep(self, vendor: Market, journal: Any) -> None:
        home = RunHome(self.folder / "home")
        home.snapshot.code.mkdir(parents=True)
        keeper = RunKeeper(
            journal,
            lambda _: vendor,
            lambda request: vendor.offers(request)[:2],
            home,
            {},
            lambda _: None,
            Terms(boot_s=20.0),
        )
        with keeper.hold_lease(RUN):
            for _ in keeper.follow_run(journal.ops(run=RUN)[-1]):
                pass

    def _meanwhile(self, journal: Any, what: str, pid: int) -> set[str]:
        """Act on the world while the laptop sleeps; return the tokens of the ended pods."""
        self.wire.cut()
        vendor, ended = self.vendor(), set[str]()
        self.here.move(self.chance.choice(HOURS_S))
        if what.startswith("ended"):
            self.was_told = journal.leases.holder(keeper_lease(RUN)) is not None
            keep.end_keeper(RUN, journal, patience_s=-1.0)
            for op in journal.ops(live=True):
                ended.add(op.token)
                with contextlib.suppress(SlipwayError):  # the sweeps continue
                    pods.end(vendor, op, journal, patience_s=0.0)
        if what == "taken over":
            for name in journal.leases.held_names():
                if name == keeper_lease(RUN):
                    self.known = {op.token for op in journal.ops()}
                    journal.leases.renew(Lease(name, journal.leases._lease(name)[0]))
                else:  # a stopped process counts as alive
                    with contextlib.suppress(LeaseHeld):
                        journal.leases.acquire(name)
                        raise Wrong(f"{name} was taken from a process that lives")
        if what.endswith(("sweeps", "swept")):
            for _ in range(4):
                with contextlib.suppress(LeaseHeld):
                    reconcile(vendor, journal)
                self.here.move(self.chance.choice([61, 700]))
        return ended

    def _judge(self, journal: Any, judge: Judge, ended: set[str]) -> None:
        rows = {op.token: op for op in journal.ops()}
        judge.at_any_time(list(rows.values()))
        if back := [token for token in ended if rows[token].state in ("BOOTING", "READY", "LOST")]:
            raise Wrong(f"stale write: {[(rows[token].state, rows[token].reason) for token in back]} was ended")
        there = [one for one in self.here.machines(judge.prefix) if one.exists]
        late = [one for one in there if one.token in ended]
        if late:
            raise Wrong(f"stale act: {late} though its run was ended; rows: {[rows[one.token] for one in late]}")
        if there and (ended or self.was_told):
            raise Wrong(f"stale act: {there} of a run that was ended")
        if self.known is not None and (new := rows.keys() - self.known):
            raise Wrong(f"stale write: {new} for a run that another process keeps")
        for number in range(40):
            try:
                done = reconcile(self.vendor(), journal)
            except LeaseHeld:
                raise Wrong("a lease of one that is gone") from None
            if hold_still(journal.ops(), done):
                break
            self.here.move(700 if not number else 61)
        judge.at_rest(journal.ops())
        end_all(self.here, self.vendor(), journal, pods.end)


@dataclass
class Rig:
    renting: Renting
    seed: int
    slept: Counter[str] = field(default_factory=Counter)

    def run(self, trials: int, say: Callable[[str], None], only: str = "") -> None:
        """Run the trials. Raises Wrong."""
        begun, chance = 0, random.Random(self.seed)
        while sum(self.slept.values()) < trials:
            with (
                tempfile.TemporaryDirectory(prefix="sleeps-") as text,
                stage(Path(text), self.seed) as here,
                wires(here) as to,
            ):
                here.keep_time()
                for _ in range(PER_WORLD):
                    begun += 1
                    if begun > 4 * trials + 20:
                        raise Wrong(f"{begun} trials came to too few sleeps: {dict(self.slept)}")
                    seed, is_keeper = chance.getrandbits(32), begun % 2 == 0
                    name = VENDORS[begun // 2 % len(VENDORS)]
                    folder = Path(text) / str(begun)
                    folder.mkdir()
                    one = Trial(here, self.renting, folder, name, random.Random(seed), to[name])
                    what = only or one.chance.choice(MEANWHILE)
                    nth = one.chance.randint(1, 60 if is_keeper else 32)
                    about = (
                        f"{'keeper' if is_keeper else 'launcher'} at {name}, asleep at point {nth}, {what}, seed {seed}"
                    )
                    try:
                        where = one.run(is_keeper, nth, what)
                    except Wrong as wrong:
                        raise Wrong(f"{about}: {wrong}") from None
                    here.fault()
                    if where:
                        self.slept[where] += 1
                        say(f"{about}: {where}")
                    if sum(self.slept.values()) >= trials:
                        break
        say("slept at each point:")
        for label in sorted(self.slept, key=lambda label: label.split()[::-1]):
            say(f"{self.slept[label]:6d}  {label}")
        say(f"{sum(self.slept.values())} sleeps, 0 stale writes; seed {self.seed}")


@contextlib.contextmanager
def wires(here: Stage) -> Iterator[dict[str, Wire]]:
    made = {name: Wire(here.running.about[name]["url"]) for name in VENDORS}
    try:
        yield made
    finally:
        for one in made.values():
            one.close()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sleeps", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="sleeps (%(default)s)")
    parser.add_argument("--seed", type=int, help=f"by default {seeds.VARIABLE}, or the one of every day")
    parser.add_argument("--meanwhile", choices=MEANWHILE, default="", help="only this")
    parser.add_argument("--renting", default="tests.faults.crash:Renting", help="what is on trial, MODULE:NAME")
    flags = parser.parse_args(words)
    flags.seed = seeds.seed() if flags.seed is None else flags.seed
    print(f"seed {flags.seed}", flush=True)
    module, _, name = flags.renting.partition(":")
    rig = Rig(getattr(importlib.import_module(module), name)(), flags.seed)
    try:
        rig.run(flags.trials, lambda line: print(line, flush=True), flags.meanwhile)
    except Wrong as wrong:
        print(f"FAILED (seed {flags.seed}): {wrong}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
