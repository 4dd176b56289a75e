"""Machines that never boot, or differ from the offer: given back at a deadline, and the next offer is rented."""

import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.errors import LimitHit, NoOffer, SlipwayError
from infra.ledger import audit, reap, spend
from infra.ledger.journal import Journal
from infra.ledger.reconcile import reconcile
from infra.providers import market
from infra.providers.by_name import open_market
from infra.records import Plan, Request
from infra.runs import boot, launch, pods, renting
from infra.runs.renting import Terms
from infra.selection.machine_spec import expected_gpus
from infra.settings import VENDORS, Settings
from infra.transport.protocol import ConnectionLost
from tests.faults.trial import rounds
from tests.infra.rehearsal.worlds import world
from tests.world import ROOT

pytestmark = pytest.mark.process

SPEED = 600.0
KIND = {"runpod": "H100", "lium": "RTX4090", "shadeform": "L40S"}
BOOT_S = 900.0


def settings_of(running, folder):
    environ = {"SLIPWAY_CLOCK_SCALE": str(SPEED), "SLIPWAY_STATE_FILE": str(folder / "journal.db")}
    for name, key in VENDORS.items():
        environ |= {f"SLIPWAY_{name.upper()}_URL": running.about[name]["url"], key.upper(): running.about[name]["key"]}
    return Settings.load(ROOT, environ={**os.environ, **environ})


def rent(vendor, journal, run):
    request = Request(run=run, provider=vendor.name, gpu=KIND[vendor.name], num_gpus=1)
    job = Job(run="", token="", steps=(), limits=Limits(time_s=86400.0))
    for offer in sorted(vendor.offers(request), key=lambda one: one.micro_usd_per_hour):
        with contextlib.suppress(NoOffer):  # another trial has just taken the machine
            return pods.rent(vendor, request, offer, job, journal)
    raise AssertionError(f"{run}: every offer is taken")


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("trait", ["hang", "no ssh", "fail"])
@rounds(2, 34)
def test_a_machine_that_never_boots_is_given_back_by_the_deadline(tmp_path, trait, rounds):
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        running.fault(machines=[{"trait": trait, "count": None}])
        vendors = [open_market(name, settings_of(running, tmp_path)) for name in KIND]

        def trial(number):
            vendor = market(vendors[number % len(vendors)])
            assert vendor is not None
            op = rent(vendor, journal, f"otter-{number}")
            with pytest.raises(boot.BootFailed):
                boot.boot(op, vendor, journal, BOOT_S)
            return pods.end(vendor, journal.op(op.token), journal, "it did not boot").state

        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(trial, range(3 * rounds))) == {"TERMINATED"}
        truth = running.truth()
        assert (truth["billing"], truth["running"], len(truth["pods"])) == (0, 0, 3 * rounds)


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory):
    """Return a world for tests that set the faults and end the pods."""
    with world(tmp_path_factory.mktemp("shared") / "world", speed=SPEED) as running:
        yield running


@pytest.mark.parametrize("trait", ["", "disk in cost", "dear"])
def test_the_rate_of_a_pod_includes_the_disk_for_every_vendor(tmp_path, shared_world, trait):
    running = shared_world
    with Journal.open(tmp_path / "journal.db") as journal:
        running.fault(machines=[{"trait": trait, "count": None}] if trait else [])
        vendor = market(open_market("runpod", settings_of(running, tmp_path)))
        # A terabyte costs 40 % of the cheapest card.
        request = Request(run="otter", provider="runpod", gpu="RTX4090", num_gpus=1, disk_bytes=10**12)
        offer = min(vendor.offers(request), key=lambda one: one.micro_usd_per_hour)
        assert offer.micro_usd_per_hour == 340_000 + 136_987
        job = Job(run="", token="", steps=(), limits=Limits(time_s=86400.0))
        op = pods.rent(vendor, request, offer, job, journal)
        if trait == "dear":
            with pytest.raises(boot.BootFailed, match="the pod costs 0.68 USD/h; the agreed price was 0.477 USD/h"):
                boot.boot(op, vendor, journal, BOOT_S)
            assert journal.op(op.token).rate == 680_000 + 136_987  # the vendor reports the price without the disk
        else:
            assert vendor.find(op.remote_id).micro_usd_per_hour == (476_987 if trait else 340_000)
            assert boot.boot(op, vendor, journal, BOOT_S).rate == op.rate == 476_987
        op = pods.end(vendor, journal.op(op.token), journal, "enough")
        billed, spent = vendor.billed(op.remote_id), spend.spent(op, read_clocks(), SPEED)
        assert 0 < billed <= spent


def test_a_spot_row_stays_open_until_the_renting_api_reports_the_end(tmp_path):
    silent = {"vendor": "runpod", "call": "account", "kind": "error", "status": 410, "count": None}
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        running.fault(hides_spot=True)
        vendor = market(open_market("runpod", settings_of(running, tmp_path)))
        job = Job(run="", token="", steps=(), limits=Limits(time_s=86400.0))
        ops = {}
        for spot in (True, False):
            request = Request(run=f"spot-{spot}", provider="runpod", gpu="H100", num_gpus=1, spot=spot)
            ops[spot] = pods.rent(vendor, request, vendor.offers(request)[0], job, journal)
            journal.note(ops[spot], last_seen_at=int(time.time()))
            ops[spot] = journal.op(ops[spot].token)
        assert {pod.pod_id for pod in vendor.list()} == {op.remote_id for op in ops.values()}
        stays = pods.rent(vendor, replace(request, run="stays"), vendor.offers(request)[0], job, journal)
        running.fault(hides_spot=True, requests=[silent])
        for op in ops.values():
            running.send_command("/preempt", {"id": op.remote_id})
            running.delete("runpod", op.remote_id)
        told = reconcile(vendor, journal)
        assert journal.op(ops[True].token).is_live
        assert any("spot-True: the row stays open" in one and "GraphQL" in one for one in told.problems)
        # REST v2 rented the on-demand pod, and denies the pod under a key with an owner known from GraphQL.
        assert pods.end(vendor, journal.op(ops[False].token), journal, "enough").state == "TERMINATED"
        assert not any("spot-False" in one for one in told.problems)
        kinds = {one.run: (one.kind, one.note) for one in reap.inspect(vendor, journal)[0] if one.run}
        assert kinds["spot-True"][0] == audit.UNCLEAR and "whether the machine exists" in kinds["spot-True"][1]
        with pytest.raises(LimitHit, match="only by the GraphQL API"):
            pods.end(vendor, journal.op(ops[True].token), journal, "enough", patience_s=0.0)
        running.fault(hides_spot=True)
        assert pods.end(vendor, journal.op(ops[True].token), journal, "enough").state == "TERMINATED"
        assert pods.end(vendor, journal.op(stays.token), journal, "enough").state == "TERMINATED"
        assert running.truth()["billing"] == 0


def test_a_machine_with_an_address_at_the_deadline_is_tried_once(tmp_path, monkeypatch):
    address = boot._address

    def at_the_deadline(op, provider, deadline, scale):
        pod = address(op, provider, deadline + 60, scale)
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return pod

    monkeypatch.setattr(boot, "_address", at_the_deadline)
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = market(open_market("lium", settings_of(running, tmp_path)))
        op = boot.boot(rent(vendor, journal, "otter"), vendor, journal, BOOT_S)
        assert op.address
        pods.end(vendor, op, journal)


def test_bad_machines_are_skipped_and_the_next_offer_is_rented(tmp_path):
    said: list[str] = []
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        running.fault(
            machines=[
                {"trait": "ghost", "count": 1},
                {"trait": "hang", "skip": 1, "count": 1},
                {"trait": "dear", "skip": 2, "count": 1, "factor": 1.5},
            ]
        )
        vendor = open_market("shadeform", settings_of(running, tmp_path))
        request = Request(run="otter", provider="shadeform", gpu="H100")
        offers = vendor.offers(request)
        plan = Plan("t", "", (), Job(run="", token="", steps=(), limits=Limits(time_s=86400.0)), request)
        ops: list = []
        refused = ["", "an old driver"]
        terms = Terms(boot_s=BOOT_S, accept=lambda *_: refused.pop())
        renting.rent_all(renting.Rental(plan, offers, lambda _: vendor, journal, said.append, terms), ops)
        (op,) = ops
        assert journal.op(op.token).state == "BOOTING" and op.address
        truth = running.truth()
        assert [pod["id"] for pod in truth["pods"] if pod["micro_usd_per_hour"]] == [op.remote_id]
        words = "\n".join(said)
        assert "no address in time" in words and "the agreed price was" in words and "an old driver" in words, words
        pods.end(vendor, journal.op(op.token), journal)


@pytest.mark.parametrize("number", [4, 8])
def test_job_has_the_number_of_gpus_of_the_rented_offer(tmp_path, number):
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = open_market("lium", settings_of(running, tmp_path))
        request = Request(run="otter", provider="lium", gpu="L40S:4,H100:8")
        offers = [one for one in vendor.offers(request) if one.num_gpus == number]
        wanted = Job(run="", token="", steps=(), limits=Limits(time_s=86400.0), num_gpus=expected_gpus(request))
        for job, expected in ((wanted, (number, "cuda")), (replace(wanted, num_gpus=0), (0, "cpu"))):
            ops: list = []
            plan = Plan("t", "", (), job, request)
            terms = Terms(boot_s=BOOT_S)
            renting.rent_all(renting.Rental(plan, list(offers), lambda _: vendor, journal, print, terms), ops)
            told = ops[0].read_job()
            assert (told.num_gpus, told.torch) == expected
            pods.end(vendor, journal.op(ops[0].token), journal)
        held = launch.hold(request, wanted.limits, offers, lambda _: vendor, journal, print)
        assert held.read_request() == replace(request, num_gpus=number)
        pods.end(vendor, journal.op(held.token), journal)


def test_the_error_without_remaining_offers_lists_every_reason(tmp_path):
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        running.fault(machines=[{"trait": "ghost", "count": None}])
        vendor = open_market("lium", settings_of(running, tmp_path))
        request = Request(run="otter", provider="lium", gpu="H100", num_gpus=8)
        plan = Plan("t", "", (), Job(run="", token="", steps=(), limits=Limits(time_s=86400.0)), replace(request))
        with pytest.raises(NoOffer, match="no machine is left"):
            launch.start(plan, vendor.offers(request), lambda _: vendor, journal, tmp_path, {}, print)
        assert running.truth()["pods"] == [] and journal.ops(live=True) == []
        assert json.dumps([op.state for op in journal.ops()]).count("FAILED") >= 1


def test_an_unanswered_create_is_set_aside_and_the_next_offer_is_rented(tmp_path):
    """A different customer took the machine, and the refusal was lost: the machine may or may not exist."""
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = open_market("runpod", settings_of(running, tmp_path))
        request = Request(run="otter-1", provider="runpod", gpu="H100", num_gpus=1)
        offer = min(vendor.offers(request), key=lambda one: one.micro_usd_per_hour)
        running.fault(requests=[{"call": "create", "kind": "dropped"}])
        said = []
        op = launch.hold(request, Limits(time_s=86400.0), [offer, offer], lambda _: vendor, journal, said.append)
        unclear, row = journal.ops(run="otter-1")
        assert (row, row.state) == (op, "READY")
        assert (unclear.rank, unclear.detached, unclear.state, unclear.remote_id) == (0, True, "TERMINATING", None)
        assert any("which is ended once listed by the vendor. Check: inv reap" in one for one in said)
        running.fault(requests=[{"call": "create", "kind": "lost"}, {"call": "list", "kind": "error", "count": 40}])
        request = Request(run="otter-2", provider="runpod", gpu="H100", num_gpus=1)
        hidden = launch.hold(request, Limits(time_s=86400.0), [offer, offer], lambda _: vendor, journal, said.append)
        running.fault()
        assert len(running.truth()["pods"]) == 3 and hidden.state == "READY"
        for _ in range(2):
            reconcile(vendor, journal)
        live = {op.token for op in journal.ops(live=True)}
        for pod in running.truth()["pods"]:
            assert (pod["state"] in ("deleting", "gone")) is (pod["name"] not in (op.token, hidden.token)), (pod, live)
        for one in (op, hidden):
            pods.end(vendor, journal.op(one.token), journal)


@pytest.mark.day_cases(2)
@pytest.mark.parametrize("vendor_name", list(KIND))
@pytest.mark.parametrize("late_s", [0, 4000])
def test_a_pod_ended_by_the_vendor_before_its_job_is_reported_as_gone(tmp_path, vendor_name, late_s):
    """Over SSH the pod is only silent: the vendor must report the end, and whether the limit was the reason."""
    said: list[str] = []
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = market(open_market(vendor_name, settings_of(running, tmp_path)))
        assert vendor is not None
        op = boot.boot(rent(vendor, journal, "otter"), vendor, journal, BOOT_S)
        op = journal.note(op, ttl_s=3600.0)
        plan = Plan("t", "", (), Job.from_json(op.job), Request(run="otter"))
        rental = renting.Rental(plan, [], lambda _: vendor, journal, said.append, Terms())
        with pytest.raises(LimitHit if late_s else SlipwayError) as seen, renting.end_all_on_error([op], rental):
            vendor.delete(op.remote_id or "")
            running.move(late_s + 300)  # the vendor's clock, and the clock of the row
            journal.note(journal.op(op.token), boot_s=(op.boot_s or 0) - late_s / SPEED)
            raise ConnectionLost(f"{op.run}: the connection broke")
        words = str(seen.value)
        assert type(seen.value) is (LimitHit if late_s else renting.PodTakenAway), words
        assert "the connection broke" not in words and vendor_name in words, words
        assert "no pod of the run is left, and nothing bills: launch again" in words, words
        now = journal.op(op.token)
        assert (now.state, now.outcome) == ("TERMINATED", "limit" if late_s else "")
        assert running.truth()["billing"] == 0


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    "moment", ["before it is looked at", "after it has been found wanting", "while it gets its job"]
)
def test_a_run_ended_during_its_start_gets_no_second_machine(tmp_path, moment):
    """`inv down` has reported that no machine of the run exists: from then on no machine may be rented for the run."""
    said: list[str] = []
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = market(open_market("lium", settings_of(running, tmp_path)))
        assert vendor is not None
        request = Request(run="otter", provider="lium", gpu="RTX4090", num_gpus=1)
        offers = vendor.offers(request)
        assert len(offers) > 1
        plan = Plan("t", "", (), Job(run="", token="", steps=(), limits=Limits(time_s=86400.0)), request)

        def down() -> None:
            with Journal.open(tmp_path / "journal.db") as another:
                pods.end(vendor, another.ops(run="otter")[-1], another)

        def accept(*_):
            if moment == "after it has been found wanting":
                with Journal.open(tmp_path / "journal.db") as another:
                    pods.end(vendor, another.ops(run="otter")[-1], another, "it is slow")
                    pods.ask_to_end(another.ops(run="otter")[-1], another)
                return "it is slow"
            if moment == "before it is looked at":
                down()
                return "it does not answer"
            return ""

        def work(ops):
            down()
            raise ConnectionLost("the connection broke")

        rental = renting.Rental(plan, offers, lambda _: vendor, journal, said.append, Terms(accept=accept))
        with pytest.raises(
            renting.EndedDuringStart, match="was ended by inv down during the start; no pod of the run is left"
        ):
            renting.rent_and_start(rental, work)
        assert [(op.state, op.outcome) for op in journal.ops(run="otter")] == [("TERMINATED", "asked")]
        truth = running.truth()
        assert (len(truth["pods"]), truth["billing"]) == (1, 0)
        # A new launch of the run works.
        again = launch.hold(request, Limits(time_s=86400.0), vendor.offers(request), lambda _: vendor, journal, print)
        assert again.state == "READY"
        pods.end(vendor, again, journal)


@pytest.mark.parametrize(
    "vendor_name", ["runpod", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("lium", "shadeform"))]
)
def test_a_pod_preempted_before_its_job_is_replaced(tmp_path, vendor_name):
    """The next pod gets the remaining limits; without remaining limits, nothing is rented."""
    said: list[str] = []
    limits = Limits(time_s=86400.0, spend_micro_usd=100_000_000)
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = market(open_market(vendor_name, settings_of(running, tmp_path)))
        assert vendor is not None
        request = Request(run="otter", provider=vendor_name, gpu=KIND[vendor_name], num_gpus=1)
        offers = [min(vendor.offers(request), key=lambda one: one.micro_usd_per_hour)]
        taken: list[str] = []
        blamed: list[str] = []

        def accept(*_):
            (op,) = journal.ops(live=True)
            if len(taken) < most_taken:
                taken.append(op.token)
                vendor.delete(op.remote_id or "")
                running.move(pass_s)
                raise ConnectionLost("the connection broke")
            return ""

        terms = Terms(accept=accept, on_rejected=lambda _, why: blamed.append(why), boot_s=BOOT_S)
        most_taken, pass_s = 2, 600.0
        op = launch.hold(request, limits, offers, lambda _: vendor, journal, said.append, terms)
        first, second, last = journal.ops(run="otter")
        assert [first.token, second.token] == taken and last == op and op.state == "READY", said
        assert {first.state, second.state} == {"TERMINATED"} and len(blamed) == 2
        assert "the pod was taken away before the work began" in blamed[0], blamed
        assert first.cap == 100_000_000 and first.cap > (second.cap or 0) > (last.cap or 0) > 0
        costs = [spend.spent(one, read_clocks(), SPEED) for one in (first, second)]
        assert (second.cap, last.cap) == (first.cap - costs[0], first.cap - sum(costs))
        assert [pod["id"] for pod in running.truth()["pods"] if pod["micro_usd_per_hour"]] == [op.remote_id]
        pods.end(vendor, journal.op(op.token), journal)

        taken.clear()
        most_taken, request = 3, replace(request, run="heron")
        with pytest.raises(renting.PodTakenAway, match="no pod of the run is left, and nothing bills: launch again"):
            launch.hold(request, limits, offers, lambda _: vendor, journal, said.append, terms)
        assert len(taken) == renting.MOST_STARTS and running.truth()["billing"] == 0

        def refuse(*_):
            (op,) = journal.ops(live=True)
            journal.note(op, boot_s=(op.boot_s or 0) - 90_000 / SPEED)  # rented 25 hours ago
            return "an old driver"

        with pytest.raises(LimitHit, match="given back have used up the limit"):
            launch.hold(
                replace(request, run="tern"),
                limits,
                offers * 2,
                lambda _: vendor,
                journal,
                said.append,
                replace(terms, accept=refuse),
            )
        assert len(journal.ops(run="tern")) == 1 and running.truth()["billing"] == 0
