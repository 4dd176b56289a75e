"""A market for trials of renting: a world in a separate process, its clock, the vendors' clients, and the true state.

World, journal and clients share a clock. The clock runs like the real clock, and trials move the clock by hours, so
no trial waits for a settle time. A sleep of a process moves the clock too.
"""

import json
import mmap
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.agent.job import Job, Limits
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import BOOTING, LOST, READY, Op
from infra.ledger.reconcile import ReconcileResult
from infra.providers import Market
from infra.providers.json_api import JsonApi
from infra.providers.lium import Lium
from infra.providers.pod_keys import PodKeys
from infra.providers.rate_limit import Pace
from infra.providers.runpod import RunPod
from infra.providers.shadeform import Shadeform
from infra.records import Offer, Pod, Request
from infra.rehearsal.clock import parse_iso
from tests.infra.rehearsal.worlds import Running, world

VENDORS = ("shadeform", "runpod", "lium")
# Trials rent and delete machines without running work: a machine without boot has no processes and costs no time.
IDLE = {"trait": "hang", "count": None}
HOURS_S = 7 * 24 * 3600.0
SHORT_S = 0.05  # longest sleep of our own: for a lock, not for a vendor
true_time, true_monotonic, true_sleep = time.time, time.monotonic, time.sleep
true_gettime = time.clock_gettime


def offers_file(folder: Path) -> Path:
    """Write enough offers of everything: a trial never waits for the machine of a different trial."""
    row = {
        "gpu": "L40S",
        "chip": "NVIDIA L40S",
        "num_gpus": 1,
        "vram_gb": 48,
        "cpus": 16,
        "memory_gb": 64,
        "disk_gb": 500,
        "usd_per_hour": "1.00",
        "stock": 100_000,
    }
    rows: list[dict[str, Any]] = [
        {**row, "vendor": "shadeform", "kind": "L40S", "cloud": "hyperstack", "regions": ["canada-1"]},
        {**row, "vendor": "runpod", "kind": "NVIDIA L40S", "cloud": "SECURE", "regions": ["US-KS-2"]},
        *({**row, "vendor": "lium", "kind": "NVIDIA L40S", "regions": ["US"]} for _ in range(24)),
    ]
    path = folder / "offers.json"
    path.write_text(json.dumps(rows))
    return path


@dataclass(frozen=True)
class Machine:
    """The true state of a machine."""

    machine_id: str
    token: str
    vendor: str
    state: str
    ended_by: str

    @property
    def exists(self) -> bool:
        """Return true if the machine bills or will bill."""
        return self.state not in ("deleting", "gone")


@dataclass
class Stage:
    """`now` is the world's clock, in this process and in forked processes."""

    running: Running
    folder: Path
    machines_always: tuple[dict[str, Any], ...] = (IDLE,)
    _moved: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8))

    def now(self) -> float:
        return true_time() + self._moved_s

    def monotonic(self) -> float:
        return true_monotonic() + self._moved_s

    def gettime(self, clock: int) -> float:
        return true_gettime(clock) + self._moved_s * (clock == time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Sleep while the market's time passes at once; short sleeps are real."""
        if seconds <= SHORT_S:
            true_sleep(seconds)
        else:
            self.move(seconds)

    def keep_time(self) -> None:
        """Replace the clocks of this process, and of processes forked later."""
        for name, instead in self.clocks().items():
            setattr(time, name, instead)

    def clocks(self) -> dict[str, Callable[..., Any]]:
        """Return replacements for functions of the module `time`."""
        return {"time": self.now, "monotonic": self.monotonic, "sleep": self.sleep, "clock_gettime": self.gettime}

    def move(self, seconds: float) -> None:
        """Move the world first: a kill in between leaves our clock behind, which is the safe side."""
        self.running.move(seconds)
        self._moved[:] = struct.pack("d", self._moved_s + seconds)

    def read_clock(self) -> None:
        """Read the world's clock again, after a possible kill during a move."""
        ahead_s = parse_iso(self.running.truth()["now"]) - self.now()
        if ahead_s > 1:
            self._moved[:] = struct.pack("d", self._moved_s + ahead_s)

    def fault(self, *requests: dict[str, Any], machines: tuple[dict[str, Any], ...] = (), **plan: Any) -> None:
        """Set the faults from now on."""
        self.running.fault(requests=list(requests), machines=[*machines, *self.machines_always], **plan)

    def machines(self, prefix: str = "") -> list[Machine]:
        """Return all machines ever made with this prefix of the token."""
        rows = self.running.truth()["pods"]
        every = [Machine(row["id"], row["name"], row["vendor"], row["state"], row["ended_by"]) for row in rows]
        return [one for one in every if one.token.startswith(prefix)]

    def calls(self) -> list[dict[str, Any]]:
        """Return every request handled by a vendor."""
        calls: list[dict[str, Any]] = self.running.client.get(self.running.about["truth"] + "/calls").json()
        return [one for one in calls if one["vendor"]]

    def vendor(
        self, name: str, journal: Path, attempt_s: float = 20.0, per_minute: int = 1 << 30, clock_scale: float = 1.0
    ) -> Market:
        """Return a client of the vendor."""
        about = self.running.about[name]
        header = {"Authorization": f"Bearer {about['key']}"} if name == "runpod" else {"X-API-KEY": about["key"]}
        pace = Pace.per_minute(per_minute, clock_scale)
        pace.clock = self.now  # a wait for the pace of requests moves this clock
        api = JsonApi(
            name, about["url"], header, attempt_s=attempt_s, sleep=self.sleep, pace=pace, clock_scale=clock_scale
        )
        return {"shadeform": Shadeform, "runpod": RunPod, "lium": Lium}[name](api, PodKeys.for_journal(journal))

    @property
    def _moved_s(self) -> float:
        return struct.unpack("d", self._moved)[0]


@contextmanager
def stage(folder: Path, seed: int = 0, speed: float = 1.0, boots: bool = False) -> Iterator[Stage]:
    """Run a market without faults; machines never boot unless `boots`. At a `speed` other than 1, the market does
    not follow real time.
    """
    words = ["--offers", str(offers_file(folder)), "--seed", str(seed)]
    with world(folder, *words, speed=speed) as running:
        made = Stage(running, folder, () if boots else (IDLE,))
        made.fault()
        yield made
        assert running.truth()["problems"] == []


def environ(folder: Path) -> dict[str, str]:
    """Return the environment of an installation in `folder`."""
    return {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}


def order(vendor: str, run: str) -> tuple[Request, Job]:
    """Return the request and the job of a launch."""
    job = Job(run="", token="", steps=(), limits=Limits(time_s=HOURS_S))
    return Request(run=run, provider=vendor, num_gpus=1), job


def plant(vendor: Market, offer: Offer, token: str) -> Pod:
    """Make a machine without a row in any journal."""
    return vendor.create(order(vendor.name, "planted")[0], offer, token, Limits(time_s=HOURS_S))


class Wrong(AssertionError):
    """The failure of an invariant."""


@dataclass
class Judge:
    """Compares a journal with the true state; every method raises Wrong.

    `acknowledged`: tokens of pods that a launch reported as rented, without a request to end. `foreign`: ids.
    """

    stage: Stage
    prefix: str
    foreign: frozenset[str] = frozenset()
    acknowledged: set[str] = field(default_factory=set)

    def at_any_time(self, rows: list[Op]) -> None:
        """Check that no row ended falsely, no machine was made twice, and no foreign pod was taken away."""
        every = self.stage.machines()
        ours = [one for one in every if one.token.startswith(self.prefix)]
        by_token = {op.token: op for op in rows}
        for one in ours:
            row = by_token.get(one.token)
            if one.exists and row is not None and not row.is_live:
                raise Wrong(f"early end: {one.token} is {row.state} ({row.reason}), its machine is {one.state}")
            if one.token in self.acknowledged and not one.exists and one.ended_by == "client":
                raise Wrong(f"lost work: {one.token} was rented, nobody wished its end, and it was deleted")
            if one.token in self.acknowledged and (row is None or not row.is_live) and one.exists:
                raise Wrong(f"lost sight: {one.token} was rented and no live row has it")
        made = [one.token for one in ours]
        twice = sorted({token for token in made if made.count(token) > 1})
        if twice:
            raise Wrong(f"duplicates: made more than once: {', '.join(twice)}")
        gone = self.foreign - {one.machine_id for one in every if one.exists}
        if gone:
            raise Wrong(f"somebody else's: {', '.join(sorted(gone))} was deleted")

    def at_rest(self, rows: list[Op]) -> None:
        """Check that every machine has a live row, and every live row a machine."""
        self.at_any_time(rows)
        there = {(one.token, one.machine_id) for one in self.stage.machines(self.prefix) if one.exists}
        live = {(op.token, op.remote_id) for op in rows if op.is_live}
        if there - live:
            raise Wrong(f"orphans: {sorted(there - live)}; rows: {[(op.token, op.state, op.remote_id) for op in rows]}")
        if live - there:
            raise Wrong(f"ghosts: no machine of {sorted(map(str, live - there))}")


def is_settled(op: Op) -> bool:
    """Return true if the row needs no further request."""
    return not op.is_live or op.state in (BOOTING, READY, LOST)


def hold_still(rows: list[Op], done: ReconcileResult) -> bool:
    """Return true if a sweep found nothing to do."""
    return not done.problems and not done.actions and all(map(is_settled, rows))


def end_all(stage: Stage, vendor: Market, journal: Journal, end: Any) -> None:
    """End every live pod as a user would: repeat while the vendor still has the pod. Raises Wrong."""
    for op in journal.ops(live=True):
        for _ in range(40):
            try:
                op = end(vendor, journal.op(op.token), journal)
                break
            except SlipwayError as error:
                said = error
                stage.move(45)
        else:
            raise Wrong(f"{op.token} does not end: {said}")
