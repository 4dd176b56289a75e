"""Services, their requests and their keys, as text for people."""

import json

import pytest

from infra.errors import UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.settings import Settings
from scripts.services import key, logs, services_text
from scripts.services.key import KeyFlags
from serve.gateway import keys
from serve.gateway.access import AccessLog
from serve.gateway.request_log import RequestRecord
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, ServiceRecord
from serve.processes import controller_client
from tests.world import ROOT


def test_request_is_one_line_for_people_and_json_on_request(tmp_path, capsys):
    visit = RequestRecord(0.0, b"id-1")
    visit.route, visit.status, visit.replica, visit.tries, visit.key = "/v1/completions", 200, "demo-1", 2, "ann"
    visit.first_byte_s, visit.queue_s, visit.total_s = 0.03125, 1.5, 0.5
    log = AccessLog(tmp_path / "access.jsonl")
    log.write([visit])
    log.close()
    logs.write(tmp_path / "access.jsonl", 0, None, services_text.request_line)
    line = capsys.readouterr().out.strip()
    assert (
        line.split()[1:]
        == "200 /v1/completions 0.500 s first byte 0.031 s queued 1.500 s by demo-1 key ann 2 attempts".split()
    )
    logs.write(tmp_path / "access.jsonl", 0, None)
    assert json.loads(capsys.readouterr().out)["replica"] == "demo-1"
    assert services_text.request_line("{half") == "{half"


@pytest.mark.parametrize("is_live", [True, False])
def test_missing_replica_is_answered_with_a_command_that_works(tmp_path, monkeypatch, is_live):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"), "HOME": str(tmp_path)}
    settings = Settings.load(ROOT, environ=environ)
    places = type("P", (), {"folder": tmp_path})  # the logs of an ended service remain
    monkeypatch.setattr(logs.controller_process.ServicePaths, "for_service", lambda settings, name: places)
    with Journal.open(settings.state_file, environ) as journal:
        for number in (0, 10, 2):
            run = f"bad-{number}"
            journal.plan(token=f"sw1-{number}", run=run, vendor="local", owner_kind="service", owner="bad")
        if is_live:
            service_rows.write_desired_state(journal, "bad", "{}", None)
        with pytest.raises(UsageError) as refused:
            logs.log_path("bad", 9, False, settings, journal)
    see = "see: inv serve.status bad --all" if is_live else "the service has ended; its replicas: 0, 2, 10"
    assert str(refused.value) == f"bad never had a replica 9; {see}"


def test_end_of_a_service_shows_its_progress():
    ready = Member(number=0, version=1, run="demo-0", facts=Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0))
    assert controller_client.waiting_for(ServiceRecord(members=(ready,))).startswith(
        "replicas to end, requests under way first: demo-0 ("
    )
    assert controller_client.waiting_for(ServiceRecord()) == "the controller to exit"


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (True, "Until then clients need no key; afterwards the gateway refuses"),
        (False, "is not running. After the start"),
    ],
)
def test_first_key_shows_when_other_clients_are_locked_out(tmp_path, monkeypatch, capsys, runs, said):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "journal.sqlite"))
    monkeypatch.setattr(
        service_rows, "list_services", lambda journal: [type("Row", (), {"name": "demo"})] if runs else []
    )
    monkeypatch.setattr(
        key.controller_process.ServicePaths,
        "for_service",
        lambda settings, name: type("P", (), {"keys": tmp_path / "keys"}),
    )
    key.key.work(KeyFlags(name="demo", for_="ann"))
    assert said in capsys.readouterr().err
    key.key.work(KeyFlags(name="demo", for_="bob"))
    assert "locked" not in (err := capsys.readouterr().err) and "401" not in err
    assert keys.load(tmp_path / "keys")
    key.key.work(KeyFlags(name="demo", for_="cat", model=("legal", "a/b")))
    capsys.readouterr()
    key.key.work(KeyFlags(name="demo", json=True))
    assert json.loads(capsys.readouterr().out)["models"] == {"cat": ["legal", "a/b"]}
    key.key.work(KeyFlags(name="demo"))
    assert "ann, bob, cat (only legal, a/b)" in capsys.readouterr().err
    assert set(keys.load(tmp_path / "keys").models_of("cat") or ()) == {"legal", "a/b"}
    for wrong in ({"model": ("a",)}, {"for_": "ann", "drop": True, "model": ("a",)}, {"for_": "x", "model": ("a,b",)}):
        with pytest.raises(UsageError, match="--model is for a new key|not a valid name of a model"):
            key.key.work(KeyFlags(name="demo", **wrong))
