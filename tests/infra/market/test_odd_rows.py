"""A malformed row hides no machine of an account and prevents no end: each vendor's client, then commands."""

import itertools
import json
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.pods import accounts
from infra.agent.job import Job, Limits
from infra.errors import SlipwayError
from infra.ledger import reap
from infra.ledger.reconcile import reconcile
from infra.names import new_token
from infra.providers.by_name import open_market
from infra.providers.json_api import JsonApi
from infra.providers.lium import Lium
from infra.providers.pod_keys import PodKeys
from infra.providers.rate_limit import Pace
from infra.providers.runpod import RunPod
from infra.providers.shadeform import Shadeform
from infra.records import Request
from infra.runs import pods
from infra.selection import registry
from scripts.cli import context
from scripts.runs import down
from scripts.runs.down import DownFlags
from tests.infra.market import poison, runpod_stand, test_lium, test_shadeform
from tests.infra.market.rehearsed import KINDS
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

VENDORS = ("shadeform", "lium", "runpod")
ROWS = {"shadeform": test_shadeform.instance, "lium": test_lium.row, "runpod": runpod_stand.row}
KEYS = {"shadeform": test_shadeform.KEY, "lium": test_lium.KEY, "runpod": runpod_stand.KEY}
LIST = {"shadeform": "GET /instances", "lium": "GET /pods", "runpod": "GET /v2/pods"}
FIND = {"shadeform": "GET /instances/{id}/info", "lium": "GET /pods/{id}", "runpod": "GET /v2/pods/{id}"}
END = {"shadeform": "POST /instances/{id}/delete", "lium": "DELETE /pods/{id}", "runpod": "DELETE /v2/pods/{id}"}
PATHS = [operation.split()[1] for table in (LIST, FIND, END) for operation in table.values()]
OURS = "sw1-0a1b2c3d-aaaaaaaaaaaaaaaa"
QUICK = settings(max_examples=40)


@pytest.fixture(params=VENDORS)
def at(request, tmp_path):
    """Return a vendor with set answers, and a client."""
    with Stand(KEYS[request.param], paths=[*PATHS, "/sshkeys", "/graphql"]) as stand:
        api = JsonApi(request.param, stand.url, dict([KEYS[request.param]]), read_s=0.0, pace=Pace.per_minute(10**6))
        kind = {"shadeform": Shadeform, "lium": Lium, "runpod": RunPod}[request.param]
        stand.on("GET /sshkeys", Answer(200, {"ssh_keys": [None, 5, {"id": None}]}))
        stand.on(END[request.param], Answer(200, {}))
        stand.on("POST /graphql", Answer(200, {"data": {"myself": {"id": "u"}}}))
        yield request.param, stand, kind(api, PodKeys(tmp_path / "keys"))


def set_rows(stand, vendor, rows):
    page = {"shadeform": {"instances": rows}, "lium": rows, "runpod": {"pods": rows, "nextCursor": None}}
    stand.on(LIST[vendor], Answer(200, page[vendor]))


def row(vendor, name=OURS, pod_id="id-1", **changes):
    return {**ROWS[vendor](name), "id": pod_id, **changes}


def test_any_row_is_listed_owned_by_its_mark_and_ended_by_its_id(at):
    vendor, stand, client = at
    odd = poison.oddities(vendor)
    tokens = {f"id-{number}": new_token("0a1b2c3d") for number in range(len(odd))}
    rows = [row(vendor, tokens[f"id-{number}"], f"id-{number}", **one) for number, one in enumerate(odd)]
    set_rows(stand, vendor, rows)
    assert {pod.pod_id: pod.token for pod in client.list()} == tokens
    for one in rows[::7]:
        stand.on(FIND[vendor], Answer(200, one))
        assert client.find(one["id"]).token == tokens[one["id"]]
        before = stand.times(END[vendor])
        client.delete(one["id"])
        assert stand.times(END[vendor]) == before + 1, one


def test_an_unreadable_machine_can_be_ended(at):
    vendor, stand, client = at
    for answer in (
        Answer(200, b"{"),
        Answer(200, []),
        Answer(200, None),
        Answer(500, {"errors": True}),
        Answer(200, {}),
    ):
        stand.on(FIND[vendor], answer)
        before = stand.times(END[vendor])
        client.delete("id-1")
        assert stand.times(END[vendor]) == before + 1, answer


@pytest.mark.parametrize("pod_id", ["", ".", ".."])
def test_a_machine_without_an_id_is_not_ended_by_the_collection_path(at, pod_id):
    vendor, stand, client = at
    with pytest.raises(SlipwayError, match="is not the id of a machine"):
        client.delete(pod_id)
    assert stand.asked == []


@pytest.mark.parametrize(
    "odd", [{"user": "Ubuntu"}, {"user": "cloud.user"}, {"host": "gpu_7.example.net"}, {"host": "10.0.0.7%ens3"},
            {"host": "::1"}, {"port": 70000}], ids=str
)  # fmt: skip
def test_an_untrusted_address_is_dropped_and_reported(at, odd):
    vendor, stand, client = at
    set_rows(
        stand, vendor, [row(vendor, **poison.way(vendor)), row(vendor, pod_id="id-2", **poison.way(vendor, **odd))]
    )
    good, bad = client.list()
    assert good.address.startswith("ssh://root@203.0.113.9:22/") and good.odd == ""
    assert bad.address == "" and "valid" in bad.odd and len(bad.odd) < 400


def test_an_invalid_price_is_unknown_and_half_cents_count(at):
    vendor, stand, client = at
    for price in poison.PRICES:
        set_rows(stand, vendor, [row(vendor, **{poison.PRICE[vendor]: price})])
        (pod,) = client.list()
        known = {"57.5": 575_000 if vendor == "shadeform" else 57_500_000}
        assert pod.micro_usd_per_hour == known.get(str(price)[:9], 0), price
        assert bool(pod.odd) == (str(price)[:9] not in known), (price, pod.odd)


def test_a_row_with_an_unreadable_mark_is_neither_ours_nor_foreign(at):
    vendor, stand, client = at
    named = poison.NAME[vendor]
    set_rows(
        stand,
        vendor,
        [
            5,
            {},
            row(vendor, pod_id="id-2", **{named: ["x"], "tags": None, "env": None}),
            row(vendor, "theirs", "id-3", tags=None, env=None),
        ],
    )
    assert [(pod.pod_id, pod.token, pod.is_legible) for pod in client.list()] == [
        ("", "", False),
        ("", "", False),
        ("id-2", "", False),
        ("id-3", "", True),
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from([OURS, "slipway-token=x", "RUNNING", "active", "TERMINATED", "2026-11-20T12:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)  # fmt: skip


@pytest.mark.day_cases(2)
@QUICK
@given(data=st.data())
def test_any_row_leaves_the_listing_and_our_mark_readable(at, data):
    vendor, stand, client = at
    fields = sorted(ROWS[vendor](OURS).keys() - {"id", "status"})
    odd = st.dictionaries(st.sampled_from(fields), VALUES)
    ours = row(vendor, **{**data.draw(odd), poison.NAME[vendor]: OURS, "tags": None, "env": None})
    others = [
        *data.draw(st.lists(VALUES, max_size=3)),
        *(
            row(vendor, pod_id=f"other-{number}", **one)
            for number, one in enumerate(data.draw(st.lists(odd, max_size=2)))
        ),
    ]
    set_rows(stand, vendor, data.draw(st.permutations([ours, *others])))
    assert ("id-1", OURS) in [(pod.pod_id, pod.token) for pod in client.list()]


def test_invalid_json_in_a_row_hides_no_other_row(at):
    vendor, stand, client = at
    for odd in (
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 6000,
        b'"\\ud800"',
        b'"\xff\xfe"',
        b'"\x01"',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ):
        rows = b"[%s,%s]" % (json.dumps(row(vendor)).encode(), odd)
        page = {"shadeform": b'{"instances":%s}', "lium": b"%s", "runpod": b'{"pods":%s,"nextCursor":null}'}[vendor]
        stand.on(LIST[vendor], Answer(200, page % rows))
        assert ("id-1", OURS) in [(pod.pod_id, pod.token) for pod in client.list()], odd[:20]


# Whole commands, in a rehearsal with malformed listings.


def make_listings_malformed(rehearsal, odd_ids, odd, lacks=()):
    """Make the vendors' listings malformed from now on: the rows of these machines, and rows of foreign machines."""
    rows = []
    for vendor in VENDORS:
        way = poison.way(vendor, "cloud.user", "gpu_7.example.net", 70000)
        says = {**way, poison.PRICE[vendor]: None, **odd}
        rows.append({"vendor": vendor, "machine": odd_ids[vendor], "lacks": list(lacks), "says": says})
    plan = {"rows": rows, "strangers": {vendor: poison.strangers(vendor) for vendor in VENDORS}}
    assert rehearsal.world.send_command("/faults", plan) == {}


def rented(rehearsal, journal, vendor, run):
    market = open_market(vendor, rehearsal.settings)
    offer = market.offers(Request(run=run, gpu=KINDS[vendor], num_gpus=1))[0]
    job = Job(run="", token="", steps=(), limits=Limits(time_s=86_400.0))
    return journal.advance(pods.rent(market, Request(run=run), offer, job, journal), "armed")


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("odd", "lacks"), [({}, ()), ({"status": None}, ("id",))], ids=["address and price", "no id, no status"]
)
def test_down_ends_every_pod_despite_malformed_rows(rehearsal, odd, lacks):
    number = len(rehearsal.truth())
    with rehearsal.journal() as journal:
        ops = {
            (vendor, kind): rented(rehearsal, journal, vendor, f"{kind}-{vendor}-{number}")
            for vendor, kind in itertools.product(VENDORS, ("odd", "well"))
        }
        make_listings_malformed(rehearsal, {vendor: ops[vendor, "odd"].remote_id for vendor in VENDORS}, odd, lacks)
        ended = rehearsal.json("down", "--all")["ended"]
        assert sorted(ended) == sorted(op.run for op in ops.values())
        assert not rehearsal.running() and journal.ops(live=True) == []


def test_reap_ends_overdue_pods_despite_malformed_rows(rehearsal):
    with rehearsal.journal() as journal:
        ops = {
            (vendor, kind): rented(rehearsal, journal, vendor, f"late-{kind}-{vendor}")
            for vendor, kind in itertools.product(VENDORS, ("odd", "well"))
        }
        for op in ops.values():
            journal.note(op, ttl_s=1.0)
        make_listings_malformed(rehearsal, {vendor: ops[vendor, "odd"].remote_id for vendor in VENDORS}, {})
        code, err = rehearsal.fails("reap")
        assert not rehearsal.running() and journal.ops(live=True) == []
    assert (
        code == 5 and "machines with an unreadable mark may belong to this installation" in err and "odd-name" in err
    ), err


def test_an_audit_ends_orphans_despite_malformed_rows_and_shows_unreadable_rows(rehearsal):
    with rehearsal.journal() as journal:
        orphans = {
            (vendor, kind): rehearsal.order(vendor, new_token(journal.installation))
            for vendor, kind in itertools.product(VENDORS, ("odd", "well"))
        }
    make_listings_malformed(rehearsal, {vendor: orphans[vendor, "odd"] for vendor in VENDORS}, {})
    seen = rehearsal.json("audit", code=5)["machines"]
    kinds = {one["id"]: one["whose"] for one in seen if one["id"]}
    assert {kinds[one] for one in orphans.values()} == {"orphaned"}
    assert kinds["odd-name"] == kinds["no-name"] == "unknown" and kinds["odd-0"] == "foreign"
    notes = {one["id"]: one["note"] or "" for one in seen}
    assert all("valid" in notes[orphans[vendor, "odd"]] for vendor in VENDORS)
    killed = rehearsal.json("audit", "--kill", code=5)
    assert not rehearsal.running() and not {one["whose"] for one in killed["machines"]} & {"orphaned", "ending"}


def test_a_failing_delete_prevents_no_other_end(rehearsal):
    with rehearsal.journal() as journal:
        orphans = {vendor: rehearsal.order(vendor, new_token(journal.installation)) for vendor in VENDORS}
    deep = json.loads("[" * 80 + "]" * 80)
    rehearsal.world.send_command(
        "/faults",
        {
            "requests": [
                {"vendor": "runpod", "call": "delete", "kind": "error", "body": {"errors": True}, "count": 1},
                {"vendor": "lium", "call": "delete", "kind": "error", "body": {"errors": deep, "error": 5}, "count": 1},
                {"vendor": "shadeform", "call": "delete", "kind": "error", "body": [None], "count": 1},
            ]
        },
    )
    rehearsal.json("reap")
    assert not rehearsal.running() & set(orphans.values())


# A bug in our code about a single pod.


class FailingDelete(RunPod):
    """A vendor with an unexpected failure in the deletion of a pod."""

    over: ClassVar[str] = ""

    def delete(self, pod_id):
        if pod_id == self.over:
            raise ZeroDivisionError("somebody's mistake")
        super().delete(pod_id)


@pytest.fixture
def failing_client(rehearsal, monkeypatch):
    """Return a failing client, a journal, and two pods; the deletion of the first pod fails."""
    usual = open_market("runpod", rehearsal.settings)
    client = FailingDelete(usual.api, usual.keys, usual.cuda)
    monkeypatch.setattr(context, "settings", lambda **_: rehearsal.settings)
    monkeypatch.setattr(registry, "provider", lambda settings, name: client)
    monkeypatch.setattr(pods, "PATIENCE_S", 1.0)
    with rehearsal.journal() as journal:
        ops = [rented(rehearsal, journal, "runpod", f"{kind}-{len(journal.ops())}") for kind in ("bad", "good")]
        monkeypatch.setattr(FailingDelete, "over", ops[0].remote_id)
        yield client, journal, ops


def test_a_sweep_continues_after_a_failure_of_one_pod_and_reports_it(rehearsal, failing_client):
    client, journal, ops = failing_client
    for op in ops:
        journal.advance(op, "end")
    done = reconcile(client, journal)
    assert rehearsal.running() == {ops[0].remote_id}
    (problem,) = done.problems
    assert "ZeroDivisionError: somebody's mistake" in problem and ops[0].run in problem and "USD/h" in problem


def test_reap_continues_after_a_failure_of_one_pod_and_reports_it(rehearsal, failing_client, monkeypatch):
    client, journal, ops = failing_client
    for op in ops:
        journal.note(op, ttl_s=1.0)
    monkeypatch.setattr(reap, "LEAST_PATIENCE_S", 2.0)
    reaped = reap.reap(client, journal)
    assert rehearsal.running() == {ops[0].remote_id}
    assert any("ZeroDivisionError" in problem for problem in reaped.problems)
    assert [one.pod_id for one in reaped.findings if one.wastes_money] == [ops[0].remote_id]


def test_down_continues_after_a_failure_of_one_pod_and_reports_it(rehearsal, failing_client):
    _, journal, ops = failing_client
    with pytest.raises(SlipwayError, match="ZeroDivisionError: somebody's mistake"):
        down.down.work(DownFlags(all=True))
    assert rehearsal.running() == {ops[0].remote_id}
    assert [op.run for op in journal.ops(live=True)] == [ops[0].run]


def test_a_failed_reap_of_an_account_stops_no_other_reap(rehearsal, monkeypatch):
    with rehearsal.journal() as journal:
        orphans = {vendor: rehearsal.order(vendor, new_token(journal.installation)) for vendor in VENDORS}
        monkeypatch.setattr(Lium, "now", lambda _: 1 / 0)
        markets = [open_market(vendor, rehearsal.settings) for vendor in ("lium", "runpod", "shadeform")]
        problems = []
        for market in markets:
            accounts.clear(market, journal, [], problems)
    assert rehearsal.running() == {orphans["lium"]}
    assert len(problems) == 1 and problems[0].startswith("lium: ZeroDivisionError")
