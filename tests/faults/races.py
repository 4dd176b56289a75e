"""Renting processes beside other renting or sweeping processes, on one journal.

python -m tests.faults.races launches --rounds 500    launches beside a sweeping process: no live pod is deleted
python -m tests.faults.races winners --rounds 500     eight processes want the same pod: one process wins
"""

import argparse
import contextlib
import importlib
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from infra.ledger.op import AlreadyLive
from infra.providers import Market
from infra.records import Offer
from infra.runs import pods
from tests import seeds
from tests.faults.crash import Renting
from tests.faults.lives import Child, Tell, fork
from tests.faults.points import Points, watch_requests
from tests.faults.rented import VENDORS, Judge, Stage, Wrong, environ, order, stage

LAUNCHERS, RIVALS = 3, 8
LONGEST_S = 0.02  # of the delays at a point
SLOW_S = 0.15  # of the delays before a listing: whole launches pass between reading the rows and reading the listing
SPEED = 600.0  # a vendor's half minute of deleting passes within a moment of real time


@dataclass(frozen=True)
class SharedInstallation:
    """An installation on a vendor, used by several processes."""

    stage: Stage
    renting: Renting
    folder: Path
    vendor_name: str
    offers: list[Offer]
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / "state" / "slipway" / "journal.sqlite"

    def use(self, who: str, work: Callable[[random.Random, Market, Any], None]) -> None:
        """Act as the named process, which pauses at random points."""
        chance = random.Random(f"{self.seed} {who}")

        def pause_at_points(label: str, nth: int) -> None:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0, SLOW_S if label == "before list" else LONGEST_S))

        points = Points(pause_at_points)
        with self.renting.watched(self.path, environ(self.folder), points) as journal:
            watch_requests(points)
            work(chance, self.stage.vendor(self.vendor_name, self.path, clock_scale=SPEED), journal)

    def launch(self, number: int, rounds: int, tell: Tell) -> None:
        """Rent `rounds` pods, and end every second pod."""

        def work(chance: random.Random, vendor: Market, journal: Any) -> None:
            for one in range(rounds):
                request, job = order(self.vendor_name, f"run-{number}-{one}")
                op = self.renting.rent(vendor, request, chance.choice(self.offers), job, journal)
                tell("rented", op.token)
                if one % 2:
                    tell("end", op.token)
                    with contextlib.suppress(SlipwayError):  # the sweeps continue
                        self.renting.end(vendor, journal.op(op.token), journal)

        self.use(f"launcher {number}", work)

    def sweep(self, is_over: Any, tell: Tell) -> None:
        def work(chance: random.Random, vendor: Market, journal: Any) -> None:
            while not is_over.is_set():
                done = self.renting.reconcile(vendor, journal)
                tell("swept", str(len(done.actions)))

        self.use("sweeper", work)

    def want(self, number: int, rounds: int, barrier: Any, tell: Tell) -> None:
        """Rent the same pod as the other processes, at the same time."""

        def work(chance: random.Random, vendor: Market, journal: Any) -> None:
            for one in range(rounds):
                barrier.wait(60)
                # A name for all processes, or a target under several names.
                request, job = order(self.vendor_name, f"run-{one}" if one % 2 else f"run-{one}-{number}")
                try:
                    row = pods.RowDraft(target=f"target-{one}", store="s")
                    op = self.renting.rent(vendor, request, chance.choice(self.offers), job, journal, row)
                    tell("won", f"{one} {op.token}")
                except AlreadyLive as taken:
                    tell("taken", f"{one} {taken.op.token}")
                except SlipwayError as error:  # not raised: other processes wait for this process
                    tell("failed", f"{one} {error}")

        self.use(f"rival {number}", work)


def launches(office: SharedInstallation, rounds: int) -> str:
    """Race launches against sweeps. Raises Wrong for a deleted pod without a request to end."""
    context = multiprocessing.get_context("fork")
    is_over = context.Event()
    each = -(-rounds // LAUNCHERS)
    sweeper = fork(lambda tell: office.sweep(is_over, tell))
    launchers = [fork(lambda tell, n=number: office.launch(n, each, tell)) for number in range(LAUNCHERS)]
    try:
        said = [words for child in launchers for words in child.wait()]
    finally:
        is_over.set()
        swept = sweeper.wait()
    with office.renting.open(office.path, environ(office.folder)) as journal:
        judge = Judge(office.stage, f"sw1-{journal.installation}-")
        ended = {about for what, about in said if what == "end"}
        judge.acknowledged = {about for what, about in said if what == "rented"} - ended
        judge.at_any_time(journal.ops())
    made = office.stage.machines(judge.prefix)
    unwished = [one.token for one in made if one.ended_by == "client" and one.token not in ended]
    if unwished:
        raise Wrong(f"lost work: nobody wished the end of {unwished}")
    if len(made) != each * LAUNCHERS or not swept:
        raise Wrong(f"{len(made)} machines for {each * LAUNCHERS} launches, {len(swept)} sweeps")
    return f"{len(made)} launches, {len(ended)} ends, {len(swept)} sweeps: no live pod deleted"


def winners(office: SharedInstallation, rounds: int) -> str:
    """Race eight processes for a pod. Raises Wrong unless each round has one winner, and one machine."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(RIVALS)
    rivals: list[Child] = []
    for number in range(RIVALS):
        rivals.append(fork(lambda tell, n=number: office.want(n, rounds, barrier, tell)))
    said = [words for child in rivals for words in child.wait()]
    for one in range(rounds):
        won = [about.split()[1] for what, about in said if what == "won" and about.split()[0] == str(one)]
        taken = {about.split()[1] for what, about in said if what == "taken" and about.split()[0] == str(one)}
        failed = [about for what, about in said if what == "failed" and about.split()[0] == str(one)]
        if len(won) != 1 or taken != set(won) or failed:
            raise Wrong(f"round {one}: {len(won)} winners, the others saw {sorted(taken)}, failed: {failed}")
    made = len(office.stage.machines("sw1-"))
    if made != rounds:
        raise Wrong(f"{made} machines in {rounds} rounds")
    return f"{rounds} rounds, {RIVALS} processes each: one winner and one machine in every one"


RACES = {"launches": launches, "winners": winners}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.races", description=__doc__.split("\n")[0])
    parser.add_argument("race", choices=sorted(RACES))
    parser.add_argument("--rounds", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, help=f"by default {seeds.VARIABLE}, or the one of every day")
    parser.add_argument("--provider", choices=VENDORS, default=None, help="otherwise drawn from the seed")
    parser.add_argument("--renting", default="tests.faults.crash:Renting", help="what is on trial, MODULE:NAME")
    flags = parser.parse_args(words)
    flags.seed = seeds.seed() if flags.seed is None else flags.seed
    module, _, name = flags.renting.partition(":")
    renting = getattr(importlib.import_module(module), name)()
    # Lium rents single machines, too few for a race.
    vendor = flags.provider or random.Random(flags.seed).choice(("shadeform", "runpod"))
    print(f"seed {flags.seed}, {vendor}", flush=True)
    with tempfile.TemporaryDirectory(prefix="races-") as text, stage(Path(text), flags.seed, SPEED) as here:
        folder = Path(text)
        offers = here.vendor(vendor, folder / "x").offers(order(vendor, "r")[0])
        office = SharedInstallation(here, renting, folder, vendor, offers, flags.seed)
        try:
            print(RACES[flags.race](office, flags.rounds), flush=True)
        except Wrong as wrong:
            print(f"FAILED (seed {flags.seed}): {wrong}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
