"""Do the times of plans hold as 80 % intervals? Launches under drawn loads, and replays of the recorded times.

Run: .venv/bin/python -m bench.quotes [--launches 60] [--replays 140] [--seed 1] [--keep FOLDER]

A launch trains `tiny` on this machine beside 0 to 2 busy processes, drawn by the seed, which begin before the plan. A
replay estimates the steps of a recorded run from the times of up to 9 other recorded runs, drawn by the seed. Each
prints the share of times inside the interval, the p-value of the exact binomial test of 80 %, and the median width of
the interval relative to the expected time (target: not rejected at 5 %, and at most 0.6). `--keep` keeps the times of
the launches in FOLDER; a second run with the same FOLDER only replays the times.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra.ledger.timings import RunTimes, Timings
from infra.market.step_times import estimate, total
from infra.records import EstimateRequest, MachineKind
from tests.world import World

SHARE, REJECTED_AT, WIDEST = 0.8, 0.05, 0.6
BUSY = "while True: pass"
Quoted = tuple[float, float, float, float]  # low, expected and high seconds, and the seconds of the run


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--launches", type=int, default=60)
    reader.add_argument("--replays", type=int, default=140)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--keep", type=Path)
    asked = reader.parse_args()
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world, chance = World(folder.resolve()), random.Random(asked.seed)
        if not (folder / "artifacts").exists():
            for number in range(asked.launches):
                launch(world, number, chance)
        print_result("launches", [quoted_of(one) for one in world.json("cost", "--accuracy")["runs"]])
        runs = [
            one for one in Timings.for_journal(world.folder / "state" / "journal.db").all() if one.wall_s and one.times
        ]
        print_result("replays", [replay(runs, chance) for _ in range(asked.replays)])


def launch(world: World, number: int, chance: random.Random) -> None:
    """Train a new model beside a drawn load."""
    with beside(chance.choice((0, 0, 1, 2))):
        world.inv(
            "launch", "--phase", "base", "--profile", "tiny", "--provider", "local", "--seed", str(number), "--yes"
        )


@contextlib.contextmanager
def beside(processes: int) -> Iterator[None]:
    """Keep this many processes busy inside the block."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def quoted_of(run: dict[str, Any]) -> Quoted:
    """Return the interval and the time of a run from `inv cost --accuracy --json`."""
    low, high = run["forecast_range_s"]
    return low, run["forecast_s"], high, run["came_s"]


def replay(runs: Sequence[RunTimes], chance: random.Random) -> Quoted:
    """Return the interval and the time of a drawn run, estimated from drawn other runs of the same machine."""
    run = chance.choice(runs)
    others = chance.sample([one for one in runs if one is not run], chance.randint(1, min(9, len(runs) - 1)))
    machine = MachineKind(name=run.works[0].machine, flops_per_s=None, is_here=True, others=run.other_load)
    taken = {one.work.step: one.seconds for one in run.times}
    works = tuple(one for one in run.works if one.step in taken)
    found = estimate(EstimateRequest(machine=machine, steps=works), [time for one in others for time in one.times])
    return *total(found.steps), math.fsum(taken[one.step] for one in works)


def print_result(name: str, quoted: Sequence[Quoted]) -> None:
    inside = sum(low <= came <= high for low, _, high, came in quoted)
    widths = [(high - low) / expected for low, expected, high, _ in quoted if expected]
    p = binomial_p(inside, len(quoted), SHARE)
    width = statistics.median(widths)
    is_met = p >= REJECTED_AT and width <= WIDEST
    above = sum(came > high for _, _, high, came in quoted)
    print(
        f"{name}: {inside} of {len(quoted)} inside, {above} above; p = {p:.3f}; median width {width:.2f} of the "
        f"expected time; target {'met' if is_met else 'missed'}"
    )
    print(json.dumps([[round(each, 2) for each in one] for one in quoted]))


def binomial_p(hits: int, of: int, share: float) -> float:
    """Return the p-value of the two-sided exact binomial test: the probability of all results at most as likely."""
    each = [math.comb(of, one) * share**one * (1 - share) ** (of - one) for one in range(of + 1)]
    return min(1.0, math.fsum(one for one in each if one <= each[hits] * (1 + 1e-9)))


if __name__ == "__main__":
    main()
