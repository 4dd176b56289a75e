"""One run has the same cost in every place: report, chart, `why`, `cost` and the page, with all pods and nodes."""

import json
import time

import pytest

from flows.history import why
from flows.reading import cost_views, spending
from infra.agent.execution.timeline import NAME as TIMELINE
from infra.agent.job import Job, NodeGroup
from infra.ledger.journal import Journal
from infra.runs.run_home import RunHome
from infra.settings import Settings
from infra.units import in_usd
from packs.page.views.page_context import PageContext
from packs.page.views.sections import pods as page
from packs.page.views.sections import runs
from packs.page.views.sections.ask import ViewQuery
from tests.world import ROOT

HOUR, RATE = 3600, 36_000_000  # A cent a second.
MINUTE_BEGUN = (HOUR + 1, HOUR + 60)  # Shadeform bills a started minute in full.


@pytest.fixture
def settings(tmp_path):
    environ = {
        "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"),
        "HOME": str(tmp_path),
        "SLIPWAY_PODS": str(tmp_path / "pods"),
        "SHADEFORM_API_KEY": "",
    }
    return Settings.load(ROOT, environ=environ)


def record_ended_pod(
    journal: Journal, token: str, run: str, rank: int, seconds: int, began: int, cap: int | None = None
):
    """Record a pod that is gone.

    began: time of the create request, in seconds since 1970.
    """
    group = NodeGroup(run="calm-1", rank=rank, addresses=("10.0.0.1", "10.0.0.2"))
    op = journal.plan(
        **{"token": token, "run": run, "vendor": "shadeform", "rate": RATE, "rank": rank, "cap": cap},
        job=Job(run, token, (), group=group).to_json(),
    )
    for event in ("sending", "created", "armed"):
        op = journal.advance(op, event, **({"remote_id": token} if event == "created" else {}))
        time.sleep(0.01)  # The journal times events in milliseconds, and a part of no length is left out.
    op = journal.advance(journal.advance(op, "end", reason="its work has ended", outcome="stopped"), "gone")
    return journal.note(
        op,
        intent_at=began,
        sent_at=began,
        del_requested_at=began + seconds,
        ended_at=began + seconds,
        lived_s=float(seconds),
    )


def test_every_view_shows_the_same_cost_of_a_run_with_two_nodes_a_lost_pod_and_a_bill(settings):
    with Journal.open(settings.state_file) as journal:
        first = int(time.time()) - 100_000
        record_ended_pod(journal, "sw1-lost", "calm-1", 0, MINUTE_BEGUN[0], first)
        record_ended_pod(journal, "sw1-node", "calm-1.1", 1, HOUR, first + 2 * HOUR)
        op = record_ended_pod(journal, "sw1-last", "calm-1", 0, HOUR, first + 2 * HOUR)
        record_ended_pod(journal, "sw1-other", "otter-1", 0, HOUR, first)
        journal.note(journal.op("sw1-other"), job=Job("otter-1", "sw1-other", ()).to_json())
        journal.record_cost("sw1-last", "vendor", 30 * 10**6)
        expected = 10_000 * MINUTE_BEGUN[1] + 10_000 * HOUR + 30 * 10**6

        over = runs.curves(PageContext(settings), ViewQuery({"runs": "calm-1"}))["over calm-1"]
        assert f"{over['cost_usd']} USD" == in_usd(expected) == "102.60 USD"
        for table in over["parts"]:  # of a pack
            assert sum(float(amount) for *_, amount in table["rows"]) == pytest.approx(expected / 1e6)
        minutes, usd = over["curves"]["cost"]["x"], over["curves"]["cost"]["mean"]
        assert usd[-1] == pytest.approx(expected / 1e6)
        assert minutes == pytest.approx([0, 3601 / 60, 120, 180])
        assert usd[1] == pytest.approx(36.6) == usd[2]
        assert any(line.startswith(f"cost: {in_usd(expected)}") for line in why.of_run(op, journal, settings).text)

        for asked in ("calm-1", ""):
            ledger = spending.spent(journal, settings, run=asked)
            assert spending.by_run(ledger.lines)["calm-1"] == expected
        assert {line.token for line in spending.spent(journal, settings, run="calm-1").lines} == {
            "sw1-lost",
            "sw1-node",
            "sw1-last",
        }
        assert page.money(PageContext(settings), ViewQuery({}))["runs"]["calm-1"] == "102.60"


def test_page_of_an_ended_run_shows_a_bill_and_a_timeline_that_come_later(settings):
    with Journal.open(settings.state_file) as journal:
        first = int(time.time()) - 100_000
        op = record_ended_pod(journal, "sw1-a", "calm-1", 0, HOUR, first, cap=40 * 10**6)
        record_ended_pod(journal, "sw1-b", "calm-1.1", 1, HOUR, first, cap=40 * 10**6)
        context = PageContext(settings)

        def over():
            return runs.curves(context, ViewQuery({"runs": "calm-1"}))["over calm-1"]

        assert (over()["cost_usd"], over()["limit_usd"]) == ("72.00", "80.00")  # of both nodes
        journal.record_cost("sw1-a", "vendor", 30 * 10**6)
        assert over()["cost_usd"] == "66.00"
        journal.record_cost("sw1-b", "vendor", 10**6)
        with journal.writing():
            journal.execute("UPDATE spend SET at = ? WHERE token = 'sw1-b'", first + 60)
        shown = page.money(PageContext(settings), ViewQuery({}))
        assert (shown["sums"]["quoted_usd"], shown["sums"]["billed_usd"]) == ("36.00", "30.00")
        assert {one["billed_usd"]: one["is_final"] for one in shown["pods"]} == {"30.00": True, "1.00": False}
        old = over()["parts"]
        log = RunHome.for_run(op.run, settings.homes).pod.log(TIMELINE)
        log.parent.mkdir(parents=True)
        events = "SELECT at, boottime_ms FROM events WHERE token = 'sw1-a' AND event = 'armed'"
        ((at, boot_ms),) = journal.read(events)
        said = {"at": at, "clock_s": boot_ms / 1000, "token": "sw1-a", "agent": "starting"}
        log.write_text(json.dumps(said) + "\n")
        assert over()["parts"] != old or not cost_views.installed()
