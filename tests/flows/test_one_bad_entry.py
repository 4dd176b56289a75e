"""One vendor, service or sweep that cannot be read is an error of that one: the others are listed."""

import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.reading import status
from flows.services import service_view
from flows.trials import results
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.providers import offers
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from serve.policy import service_state
from tests.hostile import mistyped, spliced
from tests.world import World

KEY = "k" * 24


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path), "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db")}


def of(environ, tmp_path, **more):
    return Settings.load(tmp_path, environ={**environ, **more})


def test_a_vendor_that_cannot_be_opened_does_not_keep_the_others_from_being_asked(environ, tmp_path, caplog):
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
def test_every_service_is_listed_where_none_is_named(tmp_path):
    world = World(tmp_path)
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        for name in ("first", "second"):
            with journal.writing():
                journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, '{"nope": 1}')
    assert [one["service"] for one in world.json("serve.status")] == ["first", "second"]
    assert world.json("serve.status", "second")["service"] == "second"


def test_a_service_that_cannot_be_read_is_listed_with_its_reason_beside_the_others(environ, tmp_path):
    found = of(environ, tmp_path)
    with Journal.open(found.state_file) as journal:
        for name, wanted in (("bad", '{"nope": 1}'), ("worse", "{")):
            with journal.writing():
                journal.execute("INSERT INTO services VALUES (?, 1, ?, '')", name, wanted)
        (first, second) = service_view.look(["bad", "worse"], found, journal, True)
    assert (first["service"], first["state"]) == ("bad", service_view.UNREADABLE)
    assert "a service that this version cannot read" in second["held"]
    assert service_state.seen_of("").members == ()


TRIAL = {"run": "s.a", "arm": "a", "seed": 1, "asked": {}, "flags": {}, "env": {}, "pod": "", "state": "succeeded",
         "reason": "", "seconds": 1.0, "steps": 2, "at": 2, "score": 0.5, "beside": {}, "micro_usd": 3, "phase": "base",
         "made": ["n", "f"]}  # fmt: skip
SWEEP = {"name": "s", "about": "", "rank": {}, "against": "", "provider": "local", "limit_micro_usd": None,
         "trials": [TRIAL], "beside": [], "saved_s": 0.0, "saved_micro_usd": 0, "version": 1}  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mistyped(SWEEP) | spliced(SWEEP) | st.binary(max_size=50))
def test_any_file_of_a_sweep_is_read_or_left_out(environ, tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("any")
    found = of({**environ, "SLIPWAY_STATE_FILE": str(folder / "state" / "journal.db")}, folder)
    for name, content in (("good", json.dumps(SWEEP).encode()), ("s", raw)):
        path = results.folder_of(name, found) / "sweep.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    kept = results.kept(found)
    assert [one.folder.name for one in kept if one.folder.name == "good"] == ["good"]
    for one in kept:
        status.unfolded(one, [])
        json.dumps([trial.state for trial in one.trials.values()])
