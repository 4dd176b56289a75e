"""An unreadable vendor or service is an error of this entry: all other entries are listed."""

import logging

import pytest

from flows.services import service_view
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.providers import offers
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from serve.policy import service_state
from tests.world import World

KEY = "k" * 24


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path), "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db")}


def of(environ, tmp_path, **more):
    return Settings.load(tmp_path, environ={**environ, **more})


def test_an_unusable_vendor_does_not_stop_requests_to_other_vendors(environ, tmp_path, caplog):
    bad = {"RUNPOD_API_KEY": KEY, "SLIPWAY_RUNPOD_URL": "http://example.org/no-tls", "LIUM_API_KEY": KEY}
    both = of(environ, tmp_path, **bad, SLIPWAY_PROVIDER="market")
    assert [one.name for one in offers.sources(both)] == ["runpod", "lium"]
    (asked,) = [one for one in offers.sources(both) if one.name == "runpod"]
    with pytest.raises(UsageError, match="SLIPWAY_RUNPOD_URL"):
        asked.ask(Request(run="x", provider="runpod"))
    with caplog.at_level(logging.WARNING):
        assert [one.name for one in registry.candidates(both)] == ["lium"]
    assert caplog.text.count("SLIPWAY_RUNPOD_URL") == 1
    with pytest.raises(UsageError, match="SLIPWAY_RUNPOD_URL"):
        registry.candidates(of(environ, tmp_path, **bad, SLIPWAY_PROVIDER="runpod"))


@pytest.mark.process
def test_every_service_is_listed_without_a_named_service(tmp_path):
    world = World(tmp_path)
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        for name in ("first", "second"):
            with journal.writing():
                journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, '{"nope": 1}')
    assert [one["service"] for one in world.json("serve.status")] == ["first", "second"]
    assert world.json("serve.status", "second")["service"] == "second"


def test_an_unreadable_service_is_listed_with_its_reason(environ, tmp_path):
    found = of(environ, tmp_path)
    with Journal.open(found.state_file) as journal:
        for name, wanted in (("bad", '{"nope": 1}'), ("worse", "{")):
            with journal.writing():
                journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, wanted)
        (first, second) = service_view.look(["bad", "worse"], found, journal, True)
    assert (first["service"], first["state"]) == ("bad", service_view.UNREADABLE)
    assert "a service that this version cannot read" in second["held"]
    assert service_state.parse_observed("").members == ()
