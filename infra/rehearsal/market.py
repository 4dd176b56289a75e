"""A simulated market of GPU machines: availability, ownership, cost, and the time and cause of every end.

The market is pure: no threads, no files, no clock. The caller moves the time with `advance(now)` and carries out
`effects`, which start or end the processes of a machine; the caller then reports with `attach` or `detach`. Money is
integer micro-dollars, rounded up to the vendor's billing unit; times are UTC seconds.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from infra.rehearsal.records import (
    TERMS,
    Machine,
    MachineFault,
    Offer,
    Order,
    PriceSegment,
    Refused,
    RunnerInstruction,
    Terms,
    rate,
)

ENDED = ("deleting", "gone")
LONG_AGO = 0.0
PREEMPT_GRACE_S = 5.0  # as reported by users; no vendor promises a grace


class Market:
    def __init__(self, offers: list[Offer], *, seed: int = 0, now: float = LONG_AGO) -> None:
        self.offers = {offer.offer_id: offer for offer in offers}
        self.stock = {offer.offer_id: offer.stock for offer in offers}
        self.is_sold_out = False  # refuse all orders, as if other customers held all free machines
        self.price_changes: list[tuple[float, str, float]] = []  # (time, part of the offer id, factor)
        self.balance_micro_usd: dict[str, int] = {}  # balance by vendor; no entry means unlimited
        self.budget_micro_usd: dict[str, int] = {}  # budget of the API key by vendor; no entry means unlimited
        self.machines: dict[str, Machine] = {}
        self.effects: list[RunnerInstruction] = []
        self.now = now
        self._replays: dict[tuple[str, str], str] = {}
        self._random = random.Random(seed)

    def free(self, offer_id: str) -> int:
        """Return the number of units of an offer available now."""
        return 0 if self.is_sold_out else self.stock[offer_id]

    # -- requests of clients

    def create(self, order: Order, fates: tuple[MachineFault, ...] = ()) -> Machine:
        """Rent a machine. Raises Refused."""
        if any(fate.trait == "twice" for fate in fates):
            fates = tuple(fate for fate in fates if fate.trait != "twice")
            if room := self._second_offer_id(order):
                self.create(replace(order, offer_id=room), fates)
        offer = self.offers.get(order.offer_id)
        if offer is None:
            raise Refused("unknown", f"there is no offer {order.offer_id}")
        fates += tuple(MachineFault(trait) for trait in offer.traits)
        if any(fate.trait == "ghost" for fate in fates) or self.free(order.offer_id) < order.quantity:
            raise Refused("stock", f"{order.offer_id} is taken")
        price = order.quantity * (offer.spot_micro_usd_per_hour if order.spot else offer.micro_usd_per_hour)
        price = round(price * math.prod(fate.factor for fate in fates if fate.trait == "dear"))
        price += order.disk_micro_usd_per_hour
        self._check_funds(offer.vendor, price)
        self.stock[order.offer_id] -= order.quantity
        machine = Machine(self._new_id(offer.vendor), offer, order, self.now, price, fates)
        self.arm_timer(machine, order.expires_at)
        machine.spend_limit_micro_usd = order.spend_limit_micro_usd
        machine.about = dict(order.about)
        self.machines[machine.machine_id] = machine
        if order.replay_key:
            self._replays[offer.vendor, order.replay_key] = machine.machine_id
        if TERMS[offer.vendor].bills_boot:
            self._bill_running(machine)
        self._boot(machine)
        return machine

    def _second_offer_id(self, order: Order) -> str:
        """Return the offer for the second machine of a doubled order, or "" without stock for two machines.

        Prefers the same offer. A host that is rented whole, as on Lium, has a stock of one.
        """
        if self.stock.get(order.offer_id, 0) >= 2 * order.quantity:
            return order.offer_id
        offer = self.offers.get(order.offer_id)
        others = [one.offer_id for one in self.offers.values() if offer and one.vendor == offer.vendor and one != offer]
        return next((one for one in others if self.stock[one] >= order.quantity), "")

    def find_replayed(self, vendor: str, replay_key: str) -> Machine | None:
        """Return the machine of an earlier order with this replay key, or None."""
        machine_id = self._replays.get((vendor, replay_key))
        return self.machines[machine_id] if machine_id else None

    def delete(self, machine_id: str, by: str = "client") -> bool:
        """Delete a machine; return False if the machine has ended already. Raises Refused("unknown")."""
        machine = self.get(machine_id)
        if machine.state in ENDED:
            return False
        self._release(machine, "deleting", by)
        machine.gone_at = self.now + TERMS[machine.offer.vendor].deleting_s
        return True

    def arm_timer(self, machine: Machine, expires_at: float | None) -> None:
        """Set the time at which the vendor ends a machine, subject to the faults of the machine."""
        machine.expires_at = _armed(expires_at, machine.fates)

    def stop(self, machine_id: str, by: str = "client") -> None:
        """Stop a machine: keep the disk, which still bills, and release the rest. Raises Refused."""
        machine = self.get(machine_id)
        if machine.state not in ("booting", "running"):
            raise Refused("state", f"it is {machine.state}")
        self._release(machine, "stopped", by)

    def start(self, machine_id: str) -> None:
        """Boot a stopped or failed machine if the GPUs are still free. Raises Refused."""
        machine = self.get(machine_id)
        if machine.state not in ("stopped", "failed"):
            raise Refused("state", f"it is {machine.state}")
        if self.free(machine.offer.offer_id) < machine.order.quantity:
            raise Refused("stock", "there are not enough free GPUs on the host machine")
        self._check_funds(machine.offer.vendor, machine.micro_usd_per_hour)
        self.stock[machine.offer.offer_id] -= machine.order.quantity
        machine.ended_at, machine.ended_by = None, ""
        self._bill_running(machine)
        self._boot(machine)

    def get(self, machine_id: str) -> Machine:
        """Return a machine. Raises Refused("unknown")."""
        try:
            return self.machines[machine_id]
        except KeyError:
            raise Refused("unknown", f"there is no machine {machine_id}") from None

    def list_machines(self, vendor: str, lag_s: float = 0.0) -> list[Machine]:
        """Return the machines on the vendor's list.

        A list that lags by `lag_s` misses new machines and still shows gone machines.
        """
        return [
            machine
            for machine in self.machines.values()
            if machine.offer.vendor == vendor
            and (machine.created_at + lag_s <= self.now)
            and (machine.state != "gone" or (machine.gone_at or LONG_AGO) + lag_s > self.now)
        ]

    def billed_micro_usd(self, machine: Machine) -> int:
        """Return the true cost of a machine until now."""
        grain_s = TERMS[machine.offer.vendor].grain_s
        return sum(_cost(segment, grain_s, self.now) for segment in machine.segments)

    def reported_bill_micro_usd(self, machine: Machine) -> int:
        """Return the cost of a machine according to the vendor."""
        return self._reported_micro_usd(machine, machine.segments)

    def reported_disk_micro_usd(self, machine: Machine) -> int:
        """Return the disk part of the cost according to the vendor."""
        of_disk = [replace(one, micro_usd_per_hour=one.disk_micro_usd_per_hour) for one in machine.segments]
        return self._reported_micro_usd(machine, of_disk)

    def _reported_micro_usd(self, machine: Machine, segments: Sequence[PriceSegment]) -> int:
        grain_s = max(
            [
                TERMS[machine.offer.vendor].grain_s,
                *(fate.after_s for fate in machine.fates if fate.trait == "coarse bill"),
            ]
        )
        bill = sum(_cost(segment, round(grain_s), self.now) for segment in segments)
        return round(bill * machine.factor("wrong bill"))

    def spent_micro_usd(self, vendor: str) -> int:
        return sum(self.billed_micro_usd(one) for one in self.machines.values() if one.offer.vendor == vendor)

    # -- passage of time

    def advance(self, now: float) -> None:
        """Apply all events due until `now`, in order; do nothing if time stands still or runs backwards."""
        while due := min(self._due(), default=None, key=lambda one: one[0]):
            at, action, machine = due
            if at > now:
                break
            self.now = max(self.now, at)
            self._apply_event(action, machine)
        self.now = max(self.now, now)

    def preempt(self, machine_id: str) -> None:
        """Preempt a machine as the vendor would. Raises Refused unless the machine boots or runs."""
        machine = self.get(machine_id)
        if machine.state not in ("booting", "running"):
            raise Refused("state", f"it is {machine.state}")
        self._apply_event("preempted", machine)

    def attach(self, machine_id: str, boot: int, host: str, port: int) -> None:
        """Record the address of a machine whose processes are up."""
        machine = self.machines[machine_id]
        if machine.boot == boot and machine.state == "running":
            machine.address = (host, port)

    def record_failed_start(self, machine_id: str, boot: int) -> None:
        """Record the failed start of a machine's processes."""
        machine = self.machines[machine_id]
        if machine.boot == boot and machine.state == "running":
            self._fail(machine, "failed")

    def detach(self, machine_id: str, boot: int) -> None:
        """Record the end of all processes of a boot."""
        machine = self.machines[machine_id]
        if machine.boot == boot:
            machine.has_processes = False

    def _due(self) -> Iterator[tuple[float, str, Machine | None]]:
        for at, _, _ in self.price_changes:
            yield at, "price", None
        for machine in self.machines.values():
            for at, action in self._future_events(machine):
                yield at, action, machine
        for action, purses in (("balance", self.balance_micro_usd), ("key budget", self.budget_micro_usd)):
            for vendor, purse in purses.items():
                billing = [one for one in self.machines.values() if one.offer.vendor == vendor and rate(one)]
                if billing:
                    left = max(0, purse - self.spent_micro_usd(vendor))
                    yield self.now + left * 3600 / sum(map(rate, billing)), action, billing[0]

    def _future_events(self, machine: Machine) -> Iterator[tuple[float, str]]:
        """Yield (time, event) for the future of a machine without further requests."""
        terms, state = TERMS[machine.offer.vendor], machine.state
        if state == "gone" or (state == "deleting" and machine.has_processes):
            return
        if state == "deleting" or (state == "failed" and machine.gone_at is not None):
            yield machine.gone_at or self.now, "gone"
        if state in ENDED:
            return
        if state == "booting" and not machine.has("hang"):
            yield machine.stages[-1][1], "failed" if machine.has("fail") else "running"
        if state == "running" and machine.active_at is not None:
            for fate in machine.fates:
                if fate.trait in ("preempted", "vanished"):
                    yield machine.active_at + fate.after_s, fate.trait
        if machine.expires_at is not None:
            yield self._checked(machine, machine.expires_at, terms), "time limit"
        if machine.spend_limit_micro_usd is not None and rate(machine):
            left = machine.spend_limit_micro_usd - self.billed_micro_usd(machine)
            at = self.now + max(0, left) * 3600 / rate(machine)
            yield self._checked(machine, at, terms), "spend limit"

    def _checked(self, machine: Machine, at: float, terms: Terms) -> float:
        """Return the time of the vendor's first check after `at`, given a check every `check_s` seconds."""
        looks = math.ceil((at - machine.created_at) / terms.check_s - 1e-9)
        return max(self.now, machine.created_at + looks * terms.check_s)

    def _apply_event(self, action: str, machine: Machine | None) -> None:
        if action == "price":
            self._change_price()
        elif machine is None:
            raise AssertionError(f"{action} happens to a machine")
        elif action == "running":
            machine.state, machine.active_at = "running", self.now
            if machine.order.expires_after_boot_s is not None:
                self.arm_timer(machine, self.now + machine.order.expires_after_boot_s)
            machine.history.append((self.now, "running"))
            if not TERMS[machine.offer.vendor].bills_boot:
                self._bill_running(machine)
            machine.has_processes = True
            self.effects.append(RunnerInstruction("start", machine.machine_id, machine.boot))
        elif action == "failed":
            self._fail(machine, "failed")
        elif action == "gone":
            machine.state = "gone"
        elif action == "preempted":
            self._apply_preemption(machine)
        else:  # "time limit", "spend limit", "balance", "key budget", "vanished"
            self.delete(machine.machine_id, action)

    def _apply_preemption(self, machine: Machine) -> None:
        # Only once: a restarted machine is not preempted again by the same fault.
        machine.fates = tuple(fate for fate in machine.fates if fate.trait != "preempted")
        becomes = TERMS[machine.offer.vendor].preempted
        if becomes == "stopped":
            self.stop(machine.machine_id, "preempted")
        elif becomes == "failed":
            self._fail(machine, "preempted")
        else:
            self.delete(machine.machine_id, "preempted")

    def _fail(self, machine: Machine, by: str) -> None:
        terms = TERMS[machine.offer.vendor]
        self._release(machine, "failed", by)
        if terms.failed_bills:
            self._bill_running(machine)
        if terms.failed_s is not None:
            machine.gone_at = self.now + terms.failed_s

    def _change_price(self) -> None:
        change = min(self.price_changes)
        self.price_changes.remove(change)
        for offer in list(self.offers.values()):
            if change[1] in offer.offer_id:
                price, spot = (
                    round(value * change[2]) for value in (offer.micro_usd_per_hour, offer.spot_micro_usd_per_hour)
                )
                fields = {**vars(offer), "micro_usd_per_hour": price, "spot_micro_usd_per_hour": spot}
                self.offers[offer.offer_id] = Offer(**fields)

    # -- building blocks

    def _boot(self, machine: Machine) -> None:
        slow = machine.factor("slow boot")
        at, machine.stages = self.now, []
        for name, shortest, longest in TERMS[machine.offer.vendor].stages:
            at += self._random.uniform(shortest, longest) * slow
            machine.stages.append((name, at))
        machine.state, machine.boot = "booting", machine.boot + 1
        machine.history.append((self.now, "booting"))
        machine.address, machine.active_at = None, None

    def _release(self, machine: Machine, state: str, by: str) -> None:
        """Release a machine: end the processes, return the units to stock, and bill only a retained disk."""
        if machine.state in ("booting", "running"):
            self.stock[machine.offer.offer_id] += machine.order.quantity
        if machine.has_processes:
            grace_s = PREEMPT_GRACE_S if by == "preempted" else 0
            self.effects.append(RunnerInstruction("end", machine.machine_id, machine.boot, grace_s))
        machine.state, machine.address = state, None
        machine.history.append((self.now, f"{state}: {by}"))
        machine.ended_at, machine.ended_by = self.now, by
        kept = machine.order.stopped_micro_usd_per_hour if state == "stopped" else 0
        self._bill(machine, kept, kept)

    def _bill_running(self, machine: Machine) -> None:
        self._bill(machine, machine.micro_usd_per_hour, machine.order.disk_micro_usd_per_hour)

    def _bill(self, machine: Machine, micro_usd_per_hour: int, of_disk: int) -> None:
        """Bill a machine at a new price from now on; 0 stops billing. `of_disk` is the disk part of the price."""
        if machine.segments and machine.segments[-1].until is None:
            machine.segments[-1].until = self.now
        if micro_usd_per_hour:
            machine.segments.append(PriceSegment(self.now, None, micro_usd_per_hour, of_disk))

    def _check_funds(self, vendor: str, price: int) -> None:
        """Raise Refused unless the balance covers the new and all billed machines for the vendor's `credit_s`."""
        if vendor in self.budget_micro_usd and self.spent_micro_usd(vendor) >= self.budget_micro_usd[vendor]:
            raise Refused("budget", "the budget of this key is spent")
        if vendor not in self.balance_micro_usd:
            return
        price += sum(rate(one) for one in self.machines.values() if one.offer.vendor == vendor)
        need = price * TERMS[vendor].credit_s / 3600
        has = self.balance_micro_usd[vendor] - self.spent_micro_usd(vendor)
        if has <= need:
            raise Refused("funds", f"requires at least ${need / 1e6:.2f}. Your balance is ${max(0, has) / 1e6:.2f}")

    def _new_id(self, vendor: str) -> str:
        """Return a new, unused id in the vendor's format."""
        while True:
            digits = f"{self._random.getrandbits(128):032x}"
            machine_id = digits[:14] if vendor == "runpod" else _uuid(digits)
            if machine_id not in self.machines:
                return machine_id


def _uuid(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _armed(expires_at: float | None, fates: tuple[MachineFault, ...]) -> float | None:
    """Return the real end of a machine with the time limit `expires_at`, given timer faults; None without an end."""
    if expires_at is None or any(fate.trait == "no timer" for fate in fates):
        return None
    return expires_at + sum(fate.after_s for fate in fates if fate.trait == "late timer")


def _cost(segment: PriceSegment, grain_s: int, now: float) -> int:
    """Return the cost of all started billing units in micro-dollars, rounded up."""
    until = now if segment.until is None else segment.until
    grains = math.ceil(max(0.0, until - segment.since) / grain_s - 1e-9)
    return -(-grains * grain_s * segment.micro_usd_per_hour // 3600)
