"""The records of a simulated market: vendor terms, offers, orders, machines and their faults.

Money is integer micro-dollars; times are UTC seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a vendor."""

    grain_s: int  # billing unit in seconds, charged when the unit starts
    bills_boot: bool  # True if billing starts with the order, False if billing starts once the machine runs
    stages: tuple[tuple[str, float, float], ...]  # stages of a boot: (name, shortest and longest duration in seconds)
    deleting_s: float  # time from the delete request until the machine leaves the list
    check_s: float  # interval of the vendor's checks of time and spend limits
    credit_s: float  # duration of an order, in seconds, to be covered by the balance
    preempted: str  # state of a preempted machine: "stopped", "failed", "deleting"
    failed_bills: bool
    failed_s: float | None = None  # time for which a failed machine is listed; None = until deleted


TERMS = {
    "runpod": Terms(
        grain_s=1,
        bills_boot=True,
        stages=(("PROVISIONING", 5, 15), ("STARTING", 20, 60)),
        deleting_s=0,
        check_s=30,
        credit_s=3600,
        preempted="stopped",
        failed_bills=True,
    ),
    "lium": Terms(
        grain_s=1,
        bills_boot=True,
        deleting_s=3,
        check_s=60,
        credit_s=900,
        preempted="deleting",
        failed_bills=False,
        stages=(("queued", 1, 2), ("connecting to node", 1, 3), ("pulling image", 5, 15), ("configuring ssh", 3, 8)),
        failed_s=180,
    ),
    "shadeform": Terms(
        grain_s=60,
        bills_boot=False,
        stages=(("creating", 3, 10), ("pending_provider", 30, 60), ("pending", 60, 120)),
        deleting_s=30,
        check_s=60,
        credit_s=0,
        preempted="failed",
        failed_bills=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Machines of a kind at a location. RunPod sells single GPUs of a machine, the other vendors whole machines."""

    vendor: str
    offer_id: str
    cloud: str
    kind: str  # the vendor's name for the machine type
    gpu: str
    num_gpus: int
    region: str
    micro_usd_per_hour: int
    spot_micro_usd_per_hour: int = 0  # 0 = not available as spot
    stock: int = 1
    traits: tuple[str, ...] = ()
    about: Any = None  # row of the offers file


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a client, independent of the vendor's API."""

    offer_id: str
    name: str
    quantity: int = 1
    spot: bool = False
    expires_at: float | None = None
    expires_after_boot_s: float | None = None  # once running, the machine gets a time limit this far ahead
    spend_limit_micro_usd: int | None = None
    has_sshd: bool = True
    disk_micro_usd_per_hour: int = 0  # in addition to the offer's price, while the machine runs
    stopped_micro_usd_per_hour: int = 0
    replay_key: str = ""
    public_keys: tuple[str, ...] = ()
    volume: str = ""  # id
    script: str = ""  # runs on the machine once the machine is up
    command: str = ""  # start command of the container, replaces the command of the image
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineFault:
    """A fault of a machine with its delay or factor."""

    trait: str
    after_s: float = 60.0
    factor: float = 2.0


@dataclass
class PriceSegment:
    """A period at a constant price."""

    since: float
    until: float | None
    micro_usd_per_hour: int
    disk_micro_usd_per_hour: int = 0  # the part of the price for the disk


@dataclass
class Machine:
    machine_id: str
    offer: Offer
    order: Order
    created_at: float
    micro_usd_per_hour: int  # while running, including the disk
    fates: tuple[MachineFault, ...]
    state: str = "booting"  # booting, running, stopped, failed, deleting, gone
    boot: int = 0  # number of starts
    stages: list[tuple[str, float]] = field(default_factory=list)  # (name, end)
    active_at: float | None = None
    address: tuple[str, int] | None = None
    has_processes: bool = False
    expires_at: float | None = None
    spend_limit_micro_usd: int | None = None
    ended_at: float | None = None
    ended_by: str = ""
    gone_at: float | None = None
    history: list[tuple[float, str]] = field(default_factory=list)  # (time, event)
    segments: list[PriceSegment] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)  # notes of the vendor's API

    def has(self, trait: str) -> bool:
        return any(fate.trait == trait for fate in self.fates)

    @property
    def is_listed(self) -> bool:
        """Return whether the vendor lists the machine; an unlisted machine can still be found by id."""
        return not (self.order.spot and self.has("spot unlisted"))

    def factor(self, trait: str) -> float:
        """Return the product of the factors of a trait; 1 without this trait."""
        return math.prod(fate.factor for fate in self.fates if fate.trait == trait)

    def reported_port(self, now: float) -> int | None:
        """Return the SSH port as reported by the vendor, possibly later than the port opens, or None."""
        wait_s = sum(fate.after_s for fate in self.fates if fate.trait == "null port")
        is_told = self.address is not None and now >= (self.active_at or now) + wait_s
        return self.address[1] if self.address and is_told else None

    def stage(self, now: float) -> str:
        """Return the current stage of the boot, or "" after the boot."""
        if self.state != "booting":
            return ""
        return next((name for name, end in self.stages if now < end), self.stages[-1][0])


@dataclass(frozen=True)
class RunnerInstruction:
    """An instruction to the runner of the processes."""

    action: str  # "start", "end"
    machine_id: str
    boot: int
    grace_s: float = 0  # seconds between TERM and KILL


class Refused(Exception):
    """Raised when the market refuses a request.

    `reason` is "stock" (taken by other customers), "funds", "budget", "unknown" (no such offer or machine) or "state".
    """

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


def rate(machine: Machine) -> int:
    """Return the current price of a machine in micro-dollars per hour."""
    last = machine.segments[-1] if machine.segments else None
    return last.micro_usd_per_hour if last and last.until is None else 0
