"""Row 8: wrong wall clocks, and wall clocks set while a pod bills; a process never counts less than the pod costs.

libfaketime fakes the clock of real processes; the boot clock stays true.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.agent.job import Limits, Step
from infra.providers import TIMER_GRAIN_S
from scripts.project import debian
from tests import seeds
from tests.faults.rented import VENDORS, Stage, Wrong, stage
from tests.faults.trial import rounds
from tests.infra.agent.world import World
from tests.world import ROOT, until
from tests.world import World as UserWorld

pytestmark = pytest.mark.process

SPEED = 600.0
HOUR_S = 3600.0
FAKETIME = debian.PACKAGES["libfaketime"][0]
OVER = 1.05
# Requests, and the shifts of the clock file, are recorded to the real second: simulated ten minutes each. A vendor
# bills by the minute.
GRACE_S = 2 * SPEED + 60
CAP = 1_000_000  # micro-USD, at 1.00 USD/h: an hour
SHIFTS_H = (-11, -3, 3, 11)
# Seeds of trials that begin at the latest hour and only go back, for known-bad clocks; several seeds, because a vendor
# may end a pod at the vendor's limit just before a look.
SET_BACK = [seed for seed in range(60) if random.Random(seed).choice(SHIFTS_H) == max(SHIFTS_H)][:9]

# Python sleeps until a time of the monotonic clock; libfaketime takes the monotonic clock for the faked clock.
SLEEPS = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], max(0.0, seconds)) and None
"""
needs_faketime = pytest.mark.needs(FAKETIME)


class Clock:
    """A wall clock of the processes started with its `environ` only."""

    def __init__(self, folder: Path, shift_s: float = 0.0) -> None:
        self.path = folder / "clock"
        self.set(shift_s)

    def set(self, shift_s: float) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(f"{shift_s:+.0f}")
        draft.rename(self.path)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": debian.find(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class Laptop:
    def __init__(
        self, here: Stage, folder: Path, vendor: str, limits: dict[str, Any], count: str, shift_s: float
    ) -> None:
        folder.mkdir()
        self.clock = Clock(folder, shift_s)
        words = [sys.executable, "-m", "tests.faults.laptop"]
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **self.clock.environ},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        about = {
            "folder": str(folder),
            "vendor": vendor,
            "scale": SPEED,
            "world": here.running.about[vendor],
            "limits": limits,
            "count": count,
        }
        self._tell(json.dumps(about))

    def do(self, what: str) -> dict[str, Any]:
        self._tell(what)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{what}: the laptop ended with {self.process.wait(10)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def laptop(*words: Any) -> Iterator[Laptop]:
    made = Laptop(*words)
    try:
        yield made
    finally:
        assert made.process.stdin is not None
        made.process.stdin.close()
        assert made.process.wait(30) == 0


def truth(here: Stage, token: str) -> dict[str, Any]:
    return next(one for one in here.running.truth()["pods"] if one["name"] == token)


def look(here: Stage, machine: Laptop, token: str, ahead_s: float) -> None:
    """Compare the count with the true cost. Raises Wrong for less, or for more than 5 % plus `ahead_s`."""
    before = truth(here, token)
    said = machine.do("look")
    after = truth(here, token)
    if said["spent"] < before["billed_micro_usd"]:
        raise Wrong(f"it says {said['spent']}, and costs {before['billed_micro_usd']} micro-USD")
    most = after["billed_micro_usd"] * OVER + (GRACE_S + ahead_s) * after["micro_usd_per_hour"] / 3600
    if said["spent"] > most:
        raise Wrong(f"it says {said['spent']}, and costs {after['billed_micro_usd']} micro-USD")


def trial(here: Stage, folder: Path, chance: random.Random, number: int, count: str = "by_both") -> str:
    """Rent a pod by a wrong clock, and set the clock on and back while the pod bills; the pod ends at its limit."""
    # A vendor without a timer gives a vanished pod no upper cost: a clock that is set ahead counts fully.
    vendor = TIMED[number % len(TIMED)]
    shift_h = chance.choice(SHIFTS_H)
    shift_s = shift_h * HOUR_S
    limits: dict[str, Any] = {"time_s": 30 * HOUR_S, "spend_micro_usd": CAP}
    factor = chance.choice([1.0, 1.04])
    here.fault(machines=({"trait": "dear", "factor": factor},))
    with laptop(here, folder / f"{count}-{number}", vendor, limits, count, shift_s) as machine:
        rented = machine.do("rent")
        token, ahead_s = rented["token"], rented["rent_s"] * SPEED  # from the request to the start of billing
        look(here, machine, token, ahead_s)
        hours = (*chance.sample(SHIFTS_H, 2), 0, -11)
        for one in hours:
            moved_s = one * HOUR_S - shift_s
            ahead_s += max(0.0, moved_s * SPEED)
            shift_s += moved_s
            machine.clock.set(shift_s)
            look(here, machine, token, ahead_s)
        until(lambda: truth(here, token)["billed_micro_usd"] > CAP or not is_there(here, token), "its limit")
        if is_there(here, token):
            said = machine.do("reap")
            if not said["due"] and said["state"] != "TERMINATED":  # otherwise the vendor was slightly faster
                raise Wrong(f"its limit is reached, and it says {said}")
        until(lambda: not is_there(here, token), "its end")
        ended = truth(here, token)["ended_by"]
        if machine.do("look")["spent"] < truth(here, token)["billed_micro_usd"]:
            raise Wrong("when it is gone it says less than it has cost")
        here.fault()
        return f"{vendor}, first {shift_h:+} h, then set by {hours} h, price x {factor}: ended {ended}"


def is_there(here: Stage, token: str) -> bool:
    return truth(here, token)["state"] not in ("deleting", "gone")


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    with stage(tmp_path_factory.mktemp("clocks"), speed=SPEED, boots=True) as here:
        yield here


TIMED = tuple(name for name in VENDORS if name in TIMER_GRAIN_S)


@pytest.mark.nightly
@needs_faketime
@rounds(1, 30)
def test_a_set_clock_neither_lowers_the_count_nor_prolongs_a_pod(market, tmp_path, rounds):
    seed = seeds.seed()
    chance = random.Random(seed)
    for number in range(rounds):
        print(trial(market, tmp_path, chance, number))


@pytest.mark.nightly
@needs_faketime
@pytest.mark.parametrize("count", ["by_the_wall", "by_a_ratchet_of_the_wall"])
def test_clock_rig_rejects_code_that_trusts_the_wall_clock(market, tmp_path, count):
    with pytest.raises(Wrong, match="it says"):
        for number in SET_BACK:
            trial(market, tmp_path, random.Random(number), number, count)


@pytest.mark.nightly
@needs_faketime
@pytest.mark.parametrize("hours", [-26, 26])
def test_setting_the_clock_under_a_live_journal_ends_and_loses_no_pod(tmp_path, hours):
    (tmp_path / "sitecustomize.py").write_text(SLEEPS)
    user = UserWorld(tmp_path / "user")  # pods have guards with separate clocks
    clock = Clock(tmp_path, hours * HOUR_S).environ
    late = UserWorld(user.folder, {**clock, "PYTHONPATH": str(tmp_path)})
    user.folder.mkdir()
    path = user.folder / "set.yaml"
    path.write_text("pods: [{name: kept, provider: local, ttl_hours: 99}, {name: other, provider: local}]")
    try:
        user.inv("apply", str(path), "--yes")
        pods = {row["run"]: row["id"] for row in user.json("pod.list")}
        for words in (("reap",), ("status",), ("apply", str(path), "--yes")):
            late.inv(*words)
        seen = late.json("pod.list")
        assert {row["run"]: row["id"] for row in seen} == pods and len(pods) == 2
        assert all(0 <= row["age_s"] < 27 * HOUR_S for row in seen)
        user.inv("pod.down", "other")
        assert [row["run"] for row in late.json("pod.list")] == ["kept"]
    finally:
        user.inv("down", "--all")
    user.check_ended()


# The pod's own clock.

SCALE, LIMIT_S = 30.0, 240.0
BY_THE_WALL = (
    SLEEPS
    + """
from infra.agent import limits
limits.boottime_s = time.time
"""
)
WORK = "import time\nwhile True: time.sleep(0.1)\n"


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def guard_trial(world: World, clock: Clock, shifts_h: tuple[int, ...], python: str = SLEEPS) -> None:
    """Set the clock of a pod. Raises Wrong if the guard counts a different time."""
    world.program("sitecustomize", python)
    world.program("work", WORK)
    world.job(Step(name="work", words=("-m", "work")), limits=Limits(time_s=LIMIT_S), clock_scale=SCALE)
    before = boot_s()
    world.start(**clock.environ)
    after = boot_s()
    waiting, report, written, writings = list(shifts_h), world.pod.state / "guard.json", 0.0, 0
    while world.members():
        at, said = report.stat().st_mtime - time.time() + boot_s(), json.loads(report.read_text())
        if said["elapsed_s"] > OVER * (boot_s() - before) * SCALE + 1:
            raise Wrong(f"it says {said['elapsed_s']:.0f} s of {(boot_s() - before) * SCALE:.0f}")
        if at > written + 0.5:  # counted after the previous line was written, and armed before `after`
            if writings and said["elapsed_s"] < (written - after) * SCALE - 1:
                raise Wrong(f"it says {said['elapsed_s']:.0f} s of {(written - after) * SCALE:.0f} or more")
            written, writings = at, writings + 1
        if waiting and boot_s() - after > len(shifts_h) - len(waiting):
            clock.set(waiting.pop(0) * HOUR_S)
        if boot_s() - after > 60:
            raise Wrong("it is there long after its limit")
        time.sleep(0.05)
    if (boot_s() - before) * SCALE < 0.8 * LIMIT_S:  # at 0.88 the guard asks the step to save
        raise Wrong(f"it ended after {(boot_s() - before) * SCALE:.0f} s of {LIMIT_S:.0f}")
    assert world.verdict()["state"] == "limit" and not waiting and writings > 1


@pytest.fixture
def pod(tmp_path):
    made = World(tmp_path / "pod")
    yield made
    made.end()


@needs_faketime
@rounds(1, 10)
def test_a_pod_with_a_set_clock_ends_at_its_limit(tmp_path, pod, rounds):
    chance = random.Random(seeds.seed())
    for number in range(rounds):
        made = pod if not number else World(tmp_path / f"pod-{number}")
        first, *others = chance.sample(SHIFTS_H, 4)
        guard_trial(made, Clock(tmp_path, first * HOUR_S), (*others, 0))
        made.end()


@pytest.mark.nightly
@needs_faketime
@pytest.mark.parametrize("shift_h", [-11, 11])
def test_clock_rig_rejects_a_guard_that_trusts_the_wall_clock(tmp_path, pod, shift_h):
    with pytest.raises(Wrong, match="it says|it ended"):
        guard_trial(pod, Clock(tmp_path), (shift_h,), BY_THE_WALL)
