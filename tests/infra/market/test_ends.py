"""Every rented pod has an end: without a price, a limit or a timer on a correct clock, a pod is not rented, or given
back.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.agent.job import Job, Limits
from infra.agent.limits import hard_limit_s
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.providers import market
from infra.providers.by_name import open_market
from infra.providers.json_api import JsonApi
from infra.providers.lium import Lium
from infra.providers.pod_keys import PodKeys
from infra.providers.rate_limit import Pace
from infra.providers.runpod import RunPod
from infra.providers.shadeform import Shadeform
from infra.records import Request
from infra.runs import boot, pods
from tests.infra.market import poison, runpod_stand, test_lium, test_shadeform
from tests.infra.market.stand import Answer, Stand
from tests.infra.market.test_boot import BOOT_S, SPEED, settings_of
from tests.infra.rehearsal.worlds import world

pytestmark = pytest.mark.process

FACTS = {"shadeform": test_shadeform, "lium": test_lium, "runpod": runpod_stand}
KINDS = {"shadeform": Shadeform, "lium": Lium, "runpod": RunPod}
OFFERS = {"shadeform": "GET /instances/types", "lium": "GET /executors", "runpod": "GET /v2/catalog/gpus"}
CREATES = ("POST /instances/create", "POST /executors/{id}/rent", "POST /v2/pods", "POST /graphql")
PATHS = ("/templates", "/sshkeys", "/sshkeys/add", *(one.split()[1] for one in (*OFFERS.values(), *CREATES)))
DAY = Limits(time_s=86_400.0)


class Desk:
    """A vendor with every requested machine, at set prices."""

    def __init__(self, name, stand, folder):
        api = JsonApi(name, stand.url, dict([FACTS[name].KEY]), read_s=0.0, pace=Pace.per_minute(10**6))
        self.name, self.stand, self.client = name, stand, KINDS[name](api, PodKeys(folder))
        stand.on("GET /sshkeys", Answer(200, test_shadeform.SSH_KEYS))
        stand.on("POST /sshkeys/add", Answer(200, {"id": "key-1"}))
        stand.on("GET /templates", Answer(200, test_lium.TEMPLATES))
        for create in CREATES[:3]:
            stand.on(create, Answer(200, {"id": "new"}))
        stand.on("POST /v2/pods", Answer(201, {"id": "new", "cost": -1}))

    def prices(self, price, date=None):
        rows = {
            "shadeform": {"instance_types": [{**test_shadeform.TYPE, "hourly_price": price}]},
            "lium": [{**test_lium.HOST, "price_per_gpu": price}],
            "runpod": {"gpus": [{**runpod_stand.GPU, "price": {"secure": price, "community": price}}]},
        }
        self.stand.on(OFFERS[self.name], Answer(200, rows[self.name], {"Date": date} if date else {}))

    @property
    def request(self):
        return replace(FACTS[self.name].REQUEST, gpu="", num_gpus=1 if self.name == "shadeform" else 8)

    @property
    def created(self):
        return sum(map(self.stand.times, CREATES[:3]))


@pytest.fixture(params=sorted(FACTS))
def desk(request, tmp_path):
    with Stand(FACTS[request.param].KEY, paths=PATHS) as stand:
        yield Desk(request.param, stand, tmp_path / "keys")


@pytest.fixture
def journal(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with Journal.open(environ=environ) as opened:
        yield opened


@pytest.mark.parametrize("price", [0, 0.0, -1, "-0.5", "0", None, "free", 1e300, 1e-9, "NaN"], ids=str)
def test_a_row_without_a_price_is_no_offer_and_affects_no_other_row(desk, price):
    desk.prices(price)
    found = desk.client.catalog(desk.request)
    assert all(0 < one.micro_usd_per_hour - one.disk_micro_usd_per_hour < 10 for one in found) and bool(found) == (
        price == 1e-9
    )


def test_a_malformed_offer_hides_no_other_offer(desk):
    good = {"shadeform": test_shadeform.TYPE, "lium": test_lium.HOST, "runpod": runpod_stand.GPU}[desk.name]
    odd = [None, 5, [], {}, {**good, "configuration": 5, "price": 5, "price_per_gpu": []}, good]
    rows = {"shadeform": {"instance_types": odd}, "lium": odd, "runpod": {"gpus": odd}}
    desk.stand.on(OFFERS[desk.name], Answer(200, rows[desk.name]))
    assert desk.client.offers(desk.request)


PRICES = st.sampled_from([0, -1, 0.01, 1, 57.5, "3.2"]) | st.floats(-10, 10_000) | st.none()
SECONDS = st.none() | st.floats() | st.sampled_from([0.0, 60.0, 86_400.0])
AMOUNTS = st.none() | st.integers(-5, 10**12) | st.sampled_from([0, 20_000_000])


@settings(max_examples=50)
@given(price=PRICES, forged=st.none() | st.integers(-1, 1), time_s=SECONDS, amount=AMOUNTS)
def test_every_rented_pod_has_a_finite_limit(desk, journal, price, forged, time_s, amount):
    desk.prices(price)
    offers = [
        replace(one, micro_usd_per_hour=one.micro_usd_per_hour if forged is None else forged)
        for one in desk.client.catalog(desk.request)
    ]
    job = Job(run="", token="", steps=(), limits=Limits(time_s=time_s, spend_micro_usd=amount))
    for offer in offers[:1]:
        before, request = desk.created, replace(desk.request, run=f"otter-{len(journal.ops())}")
        try:
            op = pods.rent(desk.client, request, offer, job, journal)
        except SlipwayError:
            assert desk.created == before
            continue
        limits = Job.from_json(op.job).limits
        assert limits.micro_usd_per_hour > 0 and 0 < (hard_limit_s(limits) or 0) < math.inf
        assert op.rate > 0 and desk.created == before + 1


def test_a_pod_without_an_end_is_not_rented_and_not_recorded(desk, journal):
    desk.prices(57)
    (offer, *_), job = desk.client.catalog(desk.request), Job(run="", token="", steps=(), limits=DAY)
    with pytest.raises(NoOffer, match="the vendor gives no price"):
        pods.rent(desk.client, desk.request, replace(offer, micro_usd_per_hour=0), job, journal)
    for limits in (
        Limits(),
        Limits(idle_gpu_s=60.0),
        Limits(time_s=math.inf),
        Limits(time_s=math.nan),
        Limits(time_s=0),
        Limits(time_s=2.5e11, spend_micro_usd=2),  # a date outside every calendar
    ):
        with pytest.raises(UsageError, match="no limit would end this pod"):
            pods.rent(desk.client, desk.request, offer, replace(job, limits=limits), journal)
    assert desk.created == 0 and journal.ops() == []


@pytest.mark.parametrize("off_s", [-7200, 7200, 3.15e9], ids=["2 h behind", "2 h ahead", "100 years ahead"])
def test_nothing_is_rented_with_a_clock_more_than_an_hour_off(desk, journal, off_s):
    desk.prices(57, formatdate(time.time() + off_s, usegmt=True))
    (offer, *_), job = desk.client.catalog(desk.request), Job(run="", token="", steps=(), limits=DAY)
    with pytest.raises(SlipwayError, match="the vendor's clock is .* nothing was rented"):
        pods.rent(desk.client, desk.request, offer, job, journal)
    assert desk.created == 0 and journal.ops() == []


def test_nothing_is_rented_with_a_clock_found_wrong_after_the_offers(desk, journal, monkeypatch):
    desk.prices(57)
    (offer, *_), job = desk.client.catalog(desk.request), Job(run="", token="", steps=(), limits=DAY)

    def account(client) -> NoReturn:  # the answer has the date header before an owner
        desk.prices(57, formatdate(time.time() + 7200, usegmt=True))
        client.catalog(desk.request)
        raise SlipwayError("no owner")

    monkeypatch.setattr(KINDS[desk.name], "account", account)
    with pytest.raises(SlipwayError, match="the vendor's clock is .* nothing was rented"):
        pods.rent(desk.client, desk.request, offer, job, journal)
    assert desk.created == 0 and [op.state for op in journal.ops()] == ["FAILED"]


def test_a_pod_that_differs_from_its_offer_is_given_back(tmp_path):
    in_a_century = "2126-01-01T00:00:00Z"
    wrong = [(name, {poison.PRICE[name]: None}, "does not report the price") for name in FACTS] + [
        ("runpod", {poison.PRICE["runpod"]: None, "ssh": None}, "does not report the price"),  # and no address in time
        (
            "shadeform",
            {"auto_delete": {"date_threshold": in_a_century, "spend_threshold": "50.00"}},
            "would end the pod in",
        ),
        ("shadeform", {"auto_delete": {"date_threshold": "2020-01-01T00:00:00Z"}}, "would end the pod in"),
        ("shadeform", {"auto_delete": 5}, "did not arm the time limit"),
        ("lium", {"removal_scheduled_at": in_a_century}, "would end the pod in"),
        ("lium", {"removal_scheduled_at": ["x"]}, "did not arm the time limit"),
    ]
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        made = [
            (market(open_market(name, settings_of(running, tmp_path))), f"otter-{number}")
            for number, (name, _, _) in enumerate(wrong)
        ]
        ops = []
        for vendor, run in made:
            request = Request(run=run, num_gpus=1)
            offer = min(vendor.offers(request), key=lambda one: one.micro_usd_per_hour)
            ops.append(pods.rent(vendor, request, offer, Job(run="", token="", steps=(), limits=DAY), journal))
        running.fault(
            rows=[
                {"vendor": name, "machine": op.remote_id, "says": says}
                for op, (name, says, _) in zip(ops, wrong, strict=True)
            ]
        )

        def trial(number):
            with pytest.raises(boot.BootFailed) as caught:
                boot.boot(ops[number], made[number][0], journal, 10 * BOOT_S)
            return str(caught.value)

        with ThreadPoolExecutor(4) as threads:
            said = list(threads.map(trial, range(len(wrong))))
        for words, (_, _, expected) in zip(said, wrong, strict=True):
            assert expected in words
        for op, (vendor, _) in zip(ops, made, strict=True):
            pods.end(vendor, journal.op(op.token), journal, "it is not as agreed")


def test_an_armed_spend_limit_above_the_requested_limit_is_refused(tmp_path):
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        vendor = market(open_market("shadeform", settings_of(running, tmp_path)))
        request = Request(run="otter", provider="shadeform", gpu="L40S", num_gpus=1)
        offer = min(vendor.offers(request), key=lambda one: one.micro_usd_per_hour)
        job = Job(run="", token="", steps=(), limits=Limits(spend_micro_usd=50_000_000))
        op = pods.rent(vendor, request, offer, job, journal)
        running.fault(rows=[{"vendor": "shadeform", "says": {"auto_delete": {"spend_threshold": "5000.00"}}}])
        with pytest.raises(boot.BootFailed, match=r"armed a spend limit of 5000.00 USD; the requested limit was 50.00"):
            boot.boot(op, vendor, journal, 10 * BOOT_S)
        running.fault()
        assert boot.boot(op, vendor, journal, 10 * BOOT_S).address
        pods.end(vendor, journal.op(op.token), journal, "enough")
