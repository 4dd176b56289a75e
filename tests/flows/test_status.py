"""Status only reads; the command settles overdue rows and reports them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from flows.reading.status import due, of_run, status
from infra.agent.job import Job, Limits, Step
from infra.errors import SlipwayError, UsageError
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.records import Request
from infra.runs import pods
from infra.runs.journal_upkeep import settle
from infra.selection import registry
from infra.settings import Settings
from scripts.runs.status import refresh_rows
from tests.world import ROOT

pytestmark = pytest.mark.process


@pytest.fixture
def settings(tmp_path):
    state, there = str(tmp_path / "state" / "journal.db"), str(tmp_path / "pods")
    return Settings.load(ROOT, environ={"SLIPWAY_STATE_FILE": state, "SLIPWAY_PODS": there, "HOME": str(tmp_path)})


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as opened:
        yield opened


def interrupted_end(settings, journal, run):
    """Return a pod with a requested end that was cut off before the proof."""
    local = registry.provider(settings, "local")
    job = Job("", "", (Step(name="work", words=("step.py",)),), Limits(time_s=7200))
    request = Request(run=run)
    op = pods.rent(local, request, local.offers(request)[0], job, journal)
    return journal.advance(op, "end", reason="nobody wants it")


def test_status_writes_no_row_and_names_overdue_rows(settings, journal):
    op = interrupted_end(settings, journal, "otter-1")
    before = journal.ops()
    views = status(journal, settings)
    assert [view.run for view in views] == ["otter-1"]
    assert due(views, journal) == [op.token]
    status(journal, settings, "otter-1")
    assert journal.ops() == before and journal.op(op.token).is_live
    with pytest.raises(UsageError, match="beaver"):
        status(journal, settings, "beaver")


def test_a_run_between_two_pods_waits_and_a_long_abandoned_run_is_stopped(settings, journal, monkeypatch):
    local = registry.provider(settings, "local")
    pods.end(local, interrupted_end(settings, journal, "otter-1"), journal)
    assert [view.state for view in status(journal, settings)] == ["stopped"]
    lease = journal.leases.acquire(keeper_lease("otter-1"))
    assert [view.state for view in status(journal, settings)] == ["waiting"]
    journal.leases.release_for_takeover(lease)
    assert [view.state for view in status(journal, settings)] == ["waiting"]
    monkeypatch.setattr(budgets, "RECENT_S", -1.0)
    assert [view.state for view in status(journal, settings)] == ["stopped"]


def test_an_ending_pod_is_settled_here_unless_the_supervisor_settles_it(settings, journal):
    op = interrupted_end(settings, journal, "otter-1")
    (view,) = status(journal, settings)
    assert (view.state, view.note) == ("ending", "being ended, not yet proven gone")
    there = SimpleNamespace(ops=lambda live: [replace(op, vendor=vendor)])
    due_of = {}
    for vendor in ("local", "ssh", "runpod"):
        due_of[vendor] = due([replace(view, provider=vendor)], there)
    assert due_of == {"local": [op.token], "ssh": [op.token], "runpod": []}


def test_the_command_settles_overdue_rows_and_reports_once(settings, journal, capsys):
    for run in ("otter-1", "otter-2"):
        interrupted_end(settings, journal, run)
    views = refresh_rows(journal, settings, "otter-2")
    assert [view.run for view in views] == ["otter-2"] and not journal.ops(live=True)
    told = [f"{run} was settled: nobody wants it" for run in ("otter-1", "otter-2")]
    assert capsys.readouterr().err.splitlines() == told
    refresh_rows(journal, settings, "")
    assert capsys.readouterr().err == ""


def test_ended_runs_stay_in_the_table_and_are_no_longer_overdue(settings, journal):
    op = interrupted_end(settings, journal, "otter-1")
    (ended,) = settle(journal, settings, print, [op.token])
    assert (ended.token, ended.reason) == (op.token, "nobody wants it")
    views = status(journal, settings)
    assert [view.run for view in of_run(views, journal, "otter")] == ["otter-1"] and due(views, journal) == []


def test_one_of_two_concurrent_settlers_settles_a_row_and_reports_it(settings, journal, monkeypatch):
    """An error names the run once."""
    told: list[str] = []
    for run in ("otter-1", "otter-2"):
        interrupted_end(settings, journal, run)

    def meanwhile(op, *_):
        if op.run == "otter-1":
            return journal.note(journal.note(op, rate=1) and op, rate=2)  # the row has changed since the read
        raise SlipwayError("otter-2: nobody can be asked")

    monkeypatch.setattr("infra.runs.journal_upkeep._settle", meanwhile)
    settle(journal, settings, told.append)
    assert told == ["otter-2: nobody can be asked"]
