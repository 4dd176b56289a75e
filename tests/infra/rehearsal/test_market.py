"""The market alone, in time that only tests move."""

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from infra.rehearsal.market import Market
from infra.rehearsal.offers import read_offers
from infra.rehearsal.records import TERMS, Machine, MachineFault, Offer, Order, Refused, rate
from tests import seeds

USD = 1_000_000


def offer(vendor: str, **fields) -> Offer:
    defaults = {"cloud": "", "kind": "K", "gpu": "H100", "num_gpus": 1, "region": "r", "micro_usd_per_hour": 3_600_000}
    return Offer(vendor=vendor, offer_id=f"{vendor}/K", **{**defaults, "stock": 4, **fields})


def market(*offers: Offer) -> Market:
    return Market(list(offers) or [offer(vendor) for vendor in TERMS], now=1000.0)


def rent(market: Market, vendor: str, *fates: MachineFault, **fields) -> Machine:
    return market.create(Order(offer_id=f"{vendor}/K", name="sw1-a", **fields), fates)


def boot(market: Market, machine: Machine) -> None:
    market.advance(machine.stages[-1][1])
    market.attach(machine.machine_id, machine.boot, "127.0.0.1", 4000)


@pytest.mark.parametrize(("vendor", "bills_boot"), [("runpod", True), ("lium", True), ("shadeform", False)])
def test_billing_begins_at_the_vendors_start_and_stops_at_the_delete(vendor, bills_boot):
    world = market()
    machine = rent(world, vendor)
    boot(world, machine)
    assert machine.state == "running" and (world.billed_micro_usd(machine) > 0) == bills_boot
    began = machine.created_at if bills_boot else machine.active_at
    world.advance(began + 3600)
    assert world.billed_micro_usd(machine) == 3_600_000
    world.delete(machine.machine_id)
    world.advance(began + 7200)
    assert world.billed_micro_usd(machine) == 3_600_000 and rate(machine) == 0


def test_an_order_of_two_machines_also_works_with_whole_hosts():
    first, second = (replace(offer("lium", stock=1), offer_id=f"lium/{name}") for name in "AB")
    world = market(first, second)
    machine = world.create(Order(offer_id="lium/A", name="sw1-a"), (MachineFault("twice"),))
    assert machine.offer == first and [one.offer for one in world.list_machines("lium")] == [second, first]
    alone = market(first)
    machine = alone.create(Order(offer_id="lium/A", name="sw1-a"), (MachineFault("twice"),))
    assert alone.list_machines("lium") == [machine]


def test_a_begun_billing_unit_is_billed_in_full():
    world = market()
    machine = rent(world, "shadeform")
    boot(world, machine)
    world.advance(machine.active_at + 61)
    assert world.billed_micro_usd(machine) == 120_000


def test_a_spend_limit_ends_a_machine_at_the_vendors_next_check():
    world = market()
    machine = rent(world, "shadeform", spend_limit_micro_usd=1 * USD)
    boot(world, machine)
    world.advance(machine.created_at + 1e6)
    poll = TERMS["shadeform"].check_s + TERMS["shadeform"].grain_s
    assert (machine.ended_by, machine.state) == ("spend limit", "deleting")
    assert 1 * USD <= world.billed_micro_usd(machine) <= 1 * USD + poll * 1000


def test_a_time_limit_ends_a_machine_that_never_boots():
    world = market()
    machine = rent(world, "runpod", MachineFault("hang"), expires_at=1600.0)
    world.advance(1599)
    assert machine.state == "booting"
    world.advance(1600 + TERMS["runpod"].check_s)
    assert machine.ended_by == "time limit" and world.billed_micro_usd(machine) <= 1000 * 630


def test_a_gone_machine_leaves_the_listing_after_its_processes_ended():
    world = market()
    machine = rent(world, "lium")
    boot(world, machine)
    world.delete(machine.machine_id)
    world.advance(world.now + 100)
    assert world.list_machines("lium") == [machine]
    world.detach(machine.machine_id, machine.boot)
    world.advance(world.now)
    assert world.list_machines("lium") == []


def test_a_lagging_listing_lacks_new_machines_and_shows_gone_machines():
    world = market()
    machine = rent(world, "runpod")
    assert world.list_machines("runpod", 30) == [] and world.list_machines("runpod") == [machine]
    world.advance(1040)
    world.delete(machine.machine_id)
    world.detach(machine.machine_id, machine.boot)
    world.advance(1041)
    assert world.list_machines("runpod", 30) == [machine] and world.list_machines("runpod") == []
    world.advance(1080)
    assert world.list_machines("runpod", 30) == []


@pytest.mark.parametrize(("vendor", "state"), [("runpod", "stopped"), ("lium", "deleting"), ("shadeform", "failed")])
def test_a_preempted_machine_no_longer_bills(vendor, state):
    world = market()
    machine = rent(world, vendor, MachineFault("preempted", after_s=100))
    boot(world, machine)
    world.advance(machine.active_at + 100)
    billed = world.billed_micro_usd(machine)
    assert (machine.state, machine.ended_by) == (state, "preempted")
    world.advance(world.now + 3600)
    assert world.billed_micro_usd(machine) == billed


def test_a_stopped_machine_bills_its_disk_and_needs_gpus_to_start():
    world = market(offer("runpod", stock=1))
    machine = rent(world, "runpod", stopped_micro_usd_per_hour=36)
    boot(world, machine)
    world.stop(machine.machine_id)
    before = world.billed_micro_usd(machine)
    world.advance(world.now + 3600)
    assert world.billed_micro_usd(machine) == before + 36
    other = rent(world, "runpod")
    with pytest.raises(Refused, match="not enough free GPUs"):
        world.start(machine.machine_id)
    world.delete(other.machine_id)
    world.start(machine.machine_id)
    assert machine.boot == 2 and rate(machine) == 3_600_000


def test_ghost_and_taken_offers_are_refused_and_cost_nothing():
    world = market(offer("runpod", stock=1))
    with pytest.raises(Refused) as ghost:
        rent(world, "runpod", MachineFault("ghost"))
    rent(world, "runpod")
    with pytest.raises(Refused) as taken:
        rent(world, "runpod")
    assert ghost.value.reason == taken.value.reason == "stock" and len(world.machines) == 1


def test_prices_change_for_new_orders_and_some_machines_exceed_the_quote():
    world = market()
    before = rent(world, "lium")
    world.price_changes = [(1010.0, "lium", 1.5)]
    world.advance(1010)
    assert (rate(before), rate(rent(world, "lium"))) == (3_600_000, 5_400_000)
    assert rate(rent(world, "lium", MachineFault("dear", factor=2))) == 10_800_000


def test_an_order_above_the_balance_is_refused_and_an_empty_balance_ends_all():
    world = market()
    world.balance_micro_usd["runpod"] = 4 * USD
    machine = rent(world, "runpod")
    with pytest.raises(Refused, match="requires at least") as refused:
        rent(world, "runpod")
    assert refused.value.reason == "funds"
    boot(world, machine)
    world.advance(1000 + 3 * 3600)
    assert machine.ended_by == "balance" and world.billed_micro_usd(machine) <= 4 * USD + 1000


def test_a_key_beyond_its_budget_loses_its_machines_and_gets_no_new_machines():
    world = market()
    world.budget_micro_usd["lium"] = 1 * USD
    machine = rent(world, "lium")
    boot(world, machine)
    world.advance(1000 + 3600)
    assert machine.ended_by == "key budget" and 1 * USD <= world.billed_micro_usd(machine) <= 1 * USD + 1000
    with pytest.raises(Refused) as refused:
        rent(world, "lium")
    assert refused.value.reason == "budget"


def test_the_bundled_offers_contain_the_three_b200_rows():
    rows = [one for one in read_offers() if one.vendor == "shadeform" and one.gpu == "B200"]
    found = [(one.cloud, one.region, one.num_gpus, one.micro_usd_per_hour / 1e6, one.about.vram_gb) for one in rows]
    assert sorted(found, key=lambda row: row[3]) == [
        ("hyperstack", "canada-1", 8, 33.6, 192),
        ("datacrunch", "FIN-01", 8, 35.84, 192),
        ("tensordock", "us-east", 8, 38.4, 192),
    ]


@pytest.mark.parametrize(
    ("count", "is_such"),
    [
        (4, lambda row: (row.vendor, row.gpu, row.num_gpus) == ("lium", "A100-80GB", 8)
         and (row.up_mbps or 0) >= 500 and (row.down_mbps or 0) >= 500),
        (1, lambda row: row.gpu == "A100-80GB" and row.num_gpus == 8 and row.up_mbps is None and row.vendor == "lium"),
        (8, lambda row: row.gpu.startswith("V100") and row.usd_per_hour_spot != "0" and row.stock >= 8),
        (2, lambda row: row.num_gpus == 0 and not row.gpu),
        (1, lambda row: row.city == "Amsterdam"),
    ],
    ids=["8 A100 with 500 Mbit/s, a pod for each of batch_grid", "8 A100 of unknown speed", "V100:4 on two nodes",
         "without a GPU", "Amsterdam"],
)  # fmt: skip
def test_the_bundled_offers_contain_the_machines_of_the_sources(count, is_such):
    assert sum(one.stock for one in read_offers() if is_such(one.about)) >= count


class Life(RuleBasedStateMachine):
    """A market under all actions of clients, vendors and time, in any order."""

    machines = Bundle("machines")

    def __init__(self) -> None:
        super().__init__()
        self.world = market(*[offer(vendor, stock=2, spot_micro_usd_per_hour=100) for vendor in TERMS])
        self.world.balance_micro_usd["lium"] = 2 * USD
        self.billed: dict[str, int] = {}
        self.final: dict[str, int] = {}
        self.seen: list[str] = []

    @rule(
        target=machines,
        vendor=st.sampled_from(sorted(TERMS)),
        traits=st.lists(st.sampled_from("ghost hang fail preempted vanished dear".split()), max_size=2),
        spot=st.booleans(),
        life_s=st.none() | st.floats(1, 5000),
        limit=st.none() | st.integers(1, 10 * USD),
        key=st.sampled_from(["", "a", "b"]),
    )
    def order(self, vendor, traits, spot, life_s, limit, key):
        if self.world.find_replayed(vendor, key):
            return self.world.find_replayed(vendor, key)
        fields = {"spot": spot, "spend_limit_micro_usd": limit, "replay_key": key}
        expires_at = None if life_s is None else self.world.now + life_s
        try:
            machine = rent(self.world, vendor, *map(MachineFault, traits), expires_at=expires_at, **fields)
        except Refused:
            return multiple()
        assert machine.machine_id not in self.seen  # never used again
        self.seen.append(machine.machine_id)
        return machine

    @rule(machine=machines)
    def delete(self, machine):
        self.world.delete(machine.machine_id)

    @rule(machine=machines, action=st.sampled_from(["stop", "start", "preempt"]))
    def act(self, machine, action):
        with contextlib.suppress(Refused):  # wrong state, or the GPUs are in use
            getattr(self.world, action)(machine.machine_id)

    @rule(seconds=st.floats(0, 4000))
    def pass_time(self, seconds):
        self.world.advance(self.world.now + seconds)

    @rule()
    def run_background_work(self):
        effects, self.world.effects = self.world.effects, []
        for effect in effects:
            if effect.action == "start":
                self.world.attach(effect.machine_id, effect.boot, "127.0.0.1", 4000)
            else:
                self.world.detach(effect.machine_id, effect.boot)

    @rule(machine=consumes(machines))
    def forget(self, machine):
        """Forget the past: no true fact about a machine may depend on memory."""

    @invariant()
    def money_only_grows_and_stops_at_the_end(self):
        for machine_id, machine in self.world.machines.items():
            now = self.world.billed_micro_usd(machine)
            assert now >= self.billed.get(machine_id, 0) >= 0
            self.billed[machine_id] = now
            if machine.state in ("deleting", "gone"):
                assert now == self.final.setdefault(machine_id, now) and rate(machine) == 0
                assert machine.ended_by and machine.ended_at <= self.world.now

    @invariant()
    def segments_follow_each_other(self):
        for machine in self.world.machines.values():
            for one, after in zip(machine.segments, machine.segments[1:], strict=False):
                assert one.since <= one.until <= after.since

    @invariant()
    def stock_is_unused_machines(self):
        for offer_id, one in self.world.offers.items():
            held = [m for m in self.world.machines.values() if m.offer.offer_id == offer_id]
            held = [m for m in held if m.state in ("booting", "running")]
            assert self.world.stock[offer_id] == one.stock - len(held) >= 0

    @invariant()
    def limits_hold(self):
        for machine in self.world.machines.values():
            terms = TERMS[machine.offer.vendor]
            if machine.expires_at is not None:
                end = self.world.now if machine.state not in ("deleting", "gone") else machine.ended_at
                assert end <= machine.expires_at + terms.check_s + 1e-6
            if machine.spend_limit_micro_usd is not None:
                poll = terms.check_s + terms.grain_s
                most = machine.spend_limit_micro_usd + math.ceil(poll * machine.micro_usd_per_hour / 3600) + 3
                assert self.world.billed_micro_usd(machine) <= most

    @invariant()
    def no_account_spends_more_than_its_balance(self):
        assert self.world.spent_micro_usd("lium") <= 2 * USD + 4 * 3000


Life.TestCase.settings = settings(max_examples=seeds.examples(20, 60), stateful_step_count=25)
TestLife = Life.TestCase
