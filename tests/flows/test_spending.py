"""The bills of vendors in the journal: a report from before the end of a pod is not the bill of the pod."""

import time
from dataclasses import replace

import pytest

from flows.reading import spending
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.settings import Settings
from scripts.market.cost import show_ledger
from tests.world import ROOT

HOUR, RATE = 3600, 2_000_000


@pytest.fixture
def settings(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"), "HOME": str(tmp_path)}
    return Settings.load(ROOT, environ=environ)


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as opened:
        yield opened


class Vendor:
    """A vendor with answers set by a test."""

    name = "shadeform"

    def __init__(self):
        self.bill, self.when_asked = None, lambda: None

    def billed(self, pod_id):
        self.when_asked()
        if isinstance(self.bill, SlipwayError):
            raise self.bill
        return self.bill


@pytest.fixture
def vendor(monkeypatch):
    found = Vendor()
    monkeypatch.setattr(spending.offers, "accounts", lambda settings: ([found], []))
    return found


def begin(journal, hours_ago, vendor="shadeform"):
    op = journal.plan(token="sw1-a", run="a", vendor=vendor, rate=RATE)
    op = journal.advance(journal.advance(op, "sending"), "created", remote_id="pod-1")
    return journal.note(op, sent_at=int(time.time()) - hours_ago * HOUR)


def end(journal):
    """End the pod 10 hours after the request."""
    op = journal.advance(journal.advance(journal.op("sw1-a"), "end", reason="x"), "gone")
    return journal.note(op, ended_at=op.sent_at + 10 * HOUR, lived_s=10.0 * HOUR)


def wait(journal, hours):
    """Move all records into the past."""
    op = journal.op("sw1-a")
    times = {name: at - hours * HOUR for name in ("sent_at", "ended_at") if (at := getattr(op, name))}
    journal.note(op, **times)
    with journal.writing():
        journal.execute("UPDATE spend SET at = at - ?", hours * HOUR)


def ask(journal, settings):
    return spending.spent(journal, settings, run="a", asks=True).lines[0]


def amounts(journal):
    return [amount for (amount,) in journal.read("SELECT amount FROM spend ORDER BY rowid")]


@pytest.mark.parametrize("later", [None, SlipwayError("no answer")], ids=["deleted machine", "silent vendor"])
def test_run_whose_vendor_reports_no_final_bill_costs_rate_times_time(journal, settings, vendor, later, capsys):
    begin(journal, 1)
    vendor.bill = 2_000_000
    assert ask(journal, settings).billed_micro_usd == 2_000_000
    wait(journal, 9)
    end(journal)
    vendor.bill = later
    line = ask(journal, settings)
    assert (line.quoted_micro_usd, line.billed_micro_usd, line.is_final) == (20_000_000, 2_000_000, False)
    assert line.micro_usd == 20_000_000
    show_ledger([line, replace(line, billed_at=line.ended_at)], {}, "")
    assert [row.endswith("bill not final") for row in capsys.readouterr().out.splitlines()[1:3]] == [True, False]


def test_unchanged_bill_is_recorded_again_after_the_end_and_at_the_end_of_the_corrections(journal, settings, vendor):
    begin(journal, 9)
    vendor.bill = 19_500_000
    for _ in range(2):
        ask(journal, settings)
    assert amounts(journal) == [19_500_000]
    wait(journal, 1)
    end(journal)
    wait(journal, 1)
    for _ in range(2):
        assert ask(journal, settings).micro_usd == 19_500_000
    assert amounts(journal) == [19_500_000] * 2
    wait(journal, 48)
    assert spending.is_open(journal.op("sw1-a"), journal.reported_costs("vendor"))
    ask(journal, settings)
    assert not spending.is_open(journal.op("sw1-a"), journal.reported_costs("vendor"))
    assert amounts(journal) == [19_500_000] * 3


def test_lagging_bill_is_final_once_the_vendor_has_booked_the_last_hour(journal, settings, vendor):
    begin(journal, 10, "runpod")
    end(journal)
    vendor.name, vendor.bill = "runpod", 18_000_000
    costs = []
    for hours in (0, 1, 1, 1, 46):
        wait(journal, hours)
        costs.append(ask(journal, settings).micro_usd)
    assert costs == [20_000_000] * 2 + [18_000_000] * 3
    assert amounts(journal) == [18_000_000] * 3  # the first report, the first final report, and the last report


def test_bill_of_a_pod_that_ends_during_the_query_waits_for_the_next_query(journal, settings, vendor):
    begin(journal, 10)
    vendor.bill, vendor.when_asked = 2_000_000, lambda: end_elsewhere(settings)
    line = ask(journal, settings)
    assert amounts(journal) == [] and line.billed_micro_usd is None
    vendor.bill, vendor.when_asked = 19_000_000, lambda: None
    assert ask(journal, settings).micro_usd == 19_000_000


def test_cost_of_a_run_has_the_nodes_that_were_given_back_before_they_met(journal, settings):
    for run, rank in (("b", 0), ("b.1", 1), ("b.2", 2), ("b.10", 0)):
        op = journal.plan(token=f"sw1-{run}", run=run, rank=rank, vendor="lium", rate=36 * 10**9)
        op = journal.advance(journal.advance(op, "sending"), "created", remote_id=run)
        op = journal.advance(journal.advance(op, "end", reason="no machine is left"), "gone")
        journal.note(op, sent_at=op.ended_at - HOUR, lived_s=float(HOUR))
    assert [one.token for one in spending.spent(journal, settings, run="b").lines] == ["sw1-b", "sw1-b.1", "sw1-b.2"]
    of_all = spending.by_run(spending.spent(journal, settings).lines)
    assert of_all == {"b": 3 * 36 * 10**9, "b.10": 36 * 10**9}


def end_elsewhere(settings):
    with Journal.open(settings.state_file) as journal:
        end(journal)
