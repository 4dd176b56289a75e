"""The command `allow`: the token is shown whatever fails, documents of all actions, and records that cannot be read."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from flows.runs.resume import check_groups, resumption
from flows.supervisor import supervisor_client
from infra.errors import SlipwayError, UsageError
from infra.ledger import budgets, service_rows
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.agents.commands import allow
from packs.agents.commands.allow import AllowFlags
from packs.agents.control import broker, brokers, ending, files, guarantee, money, place
from packs.agents.control.account import Account
from packs.agents.control.groups import Allowances
from packs.agents.control.inv_lines import InvLines
from packs.agents.control.time_left import why_ended
from packs.agents.records.allowance import digest
from tests.packs.agents.holder import new_allowance
from tests.world import ROOT

ONE = new_allowance()


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "journal.sqlite"))
    monkeypatch.setattr(supervisor_client, "ensure", lambda settings: None)
    monkeypatch.setattr(allow, "WAIT_S", 0.0)
    with Journal.open(tmp_path / "journal.sqlite"):
        return Settings.load(ROOT)


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as one:
        yield one


def fail(*words):
    raise SlipwayError("cannot go on")


def interrupt(*words):
    raise KeyboardInterrupt


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("module", "name", "error", "is_open"),
    [
        (supervisor_client, "ensure", fail, True),
        (allow, "await_broker", interrupt, True),
        (guarantee, "of", fail, False),
        (allow, "set_budget", interrupt, False),
        (money, "state", fail, False),
        (files, "save", fail, False),
    ],
)
def test_allowance_is_open_only_if_its_token_was_shown(
    settings, journal, monkeypatch, capsys, as_json, module, name, error, is_open
):
    monkeypatch.setattr(module, name, error)
    try:
        allow.begin(AllowFlags(name="demo", spend="5", json=as_json), journal, settings)
    except (SlipwayError, KeyboardInterrupt):
        assert not (is_open and error is fail)
    said = capsys.readouterr().out.strip()
    assert bool(said) is is_open is bool(files.names(settings))
    if is_open:
        token = json.loads(said)["token"] if as_json else said
        assert files.load("demo", settings).token_sha256 == digest(token)


def test_socket_folder_of_another_user_is_refused_before_the_allowance_is_written(
    settings, journal, tmp_path, monkeypatch
):
    monkeypatch.setattr(allow, "known_user", lambda name: None)
    (tmp_path / "elsewhere").mkdir()
    taken = tmp_path / "taken"
    taken.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(place, "open_path", lambda name, settings: taken)
    with pytest.raises(UsageError, match="belongs to another user"):
        allow.begin(AllowFlags(name="demo", spend="5", user="nobody"), journal, settings)
    assert files.names(settings) == [] and budgets.find(journal, "allow-demo") is None


def test_every_action_prints_one_document(settings, journal, capsys):
    def said(action, **flags):
        action(AllowFlags(name="demo", json=True, yes=True, **flags), journal, settings)
        return json.loads(capsys.readouterr().out)

    begun = said(allow.begin, spend="5")
    assert begun["state"] == "starting" and begun["total_usd"] == "5.00" and begun["folder"] == ""
    raised = said(allow.top_up, top_up="3")
    assert (raised["allowance"], raised["total_usd"], raised["free_usd"]) == ("demo", "8.00", "8.00")
    assert said(allow.revoke)["state"] == "revoked"
    allow.show_list(journal, settings, True)
    assert [one["state"] for one in json.loads(capsys.readouterr().out)] == ["revoked"]


def harmed(text: str | None):
    """Return a function that replaces the record of the allowance; None = the record is lost."""

    def harm(settings):
        path = place.folder(settings) / "demo.json"
        path.unlink()
        if text is not None:
            path.write_text(text)

    return harm


NEWER = json.dumps({**asdict(ONE), "regions": ["eu"]})
ODD = json.dumps({**asdict(ONE), "ttl_s": "soon"})
HARMS = [harmed(NEWER), harmed(NEWER[:40]), harmed(ODD), harmed(None)]


@pytest.fixture
def at_work(settings, journal):
    """Return the row of a run of an allowance, beside a service of the allowance."""
    files.save(ONE, settings)
    budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
    account = Account("demo", settings)
    assert [account.new_run(0, 1), account.new_run(0, 1, 1_000_000)] == ["demo-1", "demo-2"]
    service_rows.write_desired_state(journal, "demo-2", "{}", None)
    row = {"budget_name": ONE.budget, "budget_run": "demo-1", "rate": 100_000, "cap": 200_000}
    return journal.plan(token="t1", run="demo-1", vendor="lium", **row)


class Ended:
    """Ends runs and services as the lines of `inv` do."""

    def __init__(self, journal, op):
        self.journal, self.op, self.names = journal, op, list[str]()

    def json(self, inv, command, flags, words=(), held=(), most_s=0.0):
        self.names += words
        if command == "down":
            self.journal.advance(self.op, "unsent")
        else:
            lease = self.journal.leases.acquire(service_rows.service_lease(*words))
            service_rows.delete_service(self.journal, *words, lease)
            self.journal.leases.release(lease)
        return {}


@pytest.mark.parametrize("harm", HARMS)
def test_machines_and_services_end_with_an_allowance_whose_record_cannot_be_read(
    settings, journal, at_work, monkeypatch, harm
):
    ended = Ended(journal, at_work)
    monkeypatch.setattr(InvLines, "json", lambda *words, **more: ended.json(*words, **more))
    assert brokers.due(journal, settings) == ["demo"] == Allowances().started_groups(journal, settings)
    harm(settings)
    assert why_ended("demo", settings) and brokers.due(journal, settings) == ["demo"]
    assert Allowances().started_groups(journal, settings) == ["demo"]
    broker.serve("demo", settings)
    assert {*ended.names} == {"demo-1", "demo-2"} and brokers.due(journal, settings) == []


@pytest.mark.parametrize("harm", HARMS)
def test_broker_of_an_ended_allowance_waits_until_a_damaged_file_of_the_runs_is_removed(
    settings, journal, at_work, monkeypatch, capsys, harm
):
    damaged, waits = place.folder(settings) / "demo.runs", list[float]()
    damaged.write_text("{")
    harm(settings)

    def wait(seconds):
        waits.append(seconds)
        damaged.unlink()

    monkeypatch.setattr(broker, "time", SimpleNamespace(sleep=wait))
    assert brokers.due(journal, settings) == ["demo"]
    broker.serve("demo", settings)
    assert waits == [broker.END_TRIES_S] and "inv down RUN; then remove the file" in capsys.readouterr().err


@pytest.mark.parametrize("harm", HARMS)
def test_down_and_revoke_of_an_allowance_whose_record_cannot_be_read(
    settings, journal, at_work, monkeypatch, capsys, harm
):
    ended = Ended(journal, at_work)
    monkeypatch.setattr(InvLines, "json", lambda *words, **more: ended.json(*words, **more))
    harm(settings)
    with pytest.raises(UsageError, match="demo exists"):
        allow.begin(AllowFlags(name="demo", spend="5"), journal, settings)
    allow.show_list(journal, settings, True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "unreadable" and "inv down demo" in row["problem"]
    allow.revoke(AllowFlags(name="demo", yes=True), journal, settings)
    assert [op.run for op in brokers.stop("demo", journal, settings, print)] == ["demo-1"]
    assert ended.names == ["demo-2"]
    path = place.folder(settings) / "demo.json"
    if harm is HARMS[0]:  # a newer checkout knows the field
        assert json.loads(path.read_text()) == {**json.loads(NEWER), "is_revoked": True}
    with pytest.raises(UsageError, match="no allowance is called other; known: demo"):
        allow.revoke(AllowFlags(name="other", yes=True), journal, settings)


@pytest.mark.parametrize("end", [lambda settings: files.revoke("demo", settings), *HARMS])
def test_resume_of_a_run_of_an_ended_allowance_is_refused_before_the_rental(settings, journal, at_work, end):
    op = journal.advance(at_work, "unsent")
    assert ending.allowance_of(op, settings) == "demo"
    check_groups(op, settings)
    end(settings)
    with pytest.raises(UsageError, match="demo-1 belongs to the allowance demo, which would end the run again"):
        resumption("demo-1", "", "", journal, settings, print)
    assert len(journal.ops()) == 1
    check_groups(replace(op, budget_name=""), settings)  # a run of the owner with the name
