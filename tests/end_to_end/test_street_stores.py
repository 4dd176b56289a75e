"""Whole launches with a bucket or a hub repository as the store: on this machine, and on a preempted rehearsed pod."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder
from infra.rehearsal import attach
from store import credentials
from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from tests import hub as hubs
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.store import conftest as stores
from tests.world import ONE_THREAD, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

SPOT = ["--provider", "runpod", "--gpu", "H100", "--num-gpus", "1", "--phase", "base", "--use-spot", "--yes"]
# Environments are reused when the tests' cache is elsewhere.
CACHES = {"SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())}
CACHES["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR") or str(cache_folder.default_cache({}).parents[1] / "uv")
s3_server, s3, hub = stores.s3_server, stores.s3, stores.hub
no_keys = stores.no_keys


@contextlib.contextmanager
def rehearsing(folder: Path, reached: dict[str, str]) -> Iterator[Rehearsed]:
    user = Rehearsed(folder, {**KEYS, **reached})
    attach.start(user.base, speed=60)
    try:
        yield user
    finally:
        with contextlib.suppress(attach.NoWorld):
            user.inv("rehearse", "--stop")
        assert until(lambda: not user.processes(), "the end of everything")


def environ(kind: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    """Return the address and the settings of a new store."""
    uri = stores.away(kind, request)
    if kind == "s3":
        server: stores.S3 = request.getfixturevalue("s3")
        return uri, {**CACHES, **stores.KEY, "AWS_ENDPOINT_URL": server.url}
    served: hubs.FakeHub = request.getfixturevalue("hub")
    return uri, {**CACHES, "HF_ENDPOINT": served.url, "HF_TOKEN": stores.TOKEN}


def weights(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("SLIPWAY_WORK", str(tmp_path / "look"))
    store = Store(uri)
    folder = store.path("base_checkpoints/tiny", store.manifest("base_checkpoints/tiny").fingerprint)
    return next((folder / "hf").glob("*.safetensors")).read_bytes()


# A minute each; daily tests cover the uploader and the fetch over both stores.
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["s3", "hf"])
def test_preempted_run_continues_from_a_remote_store(kind, request, tmp_path, monkeypatch):
    uri, reached = environ(kind, request)
    with rehearsing(tmp_path, reached) as user:
        told = json.loads(user.inv("rehearse", *SPOT, "--preempt", "1", "--store", uri, "--json"))
        assert (told["launch"]["state"], told["launch"]["recoveries"]) == ("succeeded", 1)
        assert user.truth()["billing"] == 0
    run = told["launch"]["run"]
    place = open_place(uri)
    log = place.get(f"logs/{run}/fetch.log", 0, 1 << 20).decode()
    assert "step-" in log  # The run continued from a checkpoint in the store.
    for one in (*place.listing(f"runs/{run}"), *place.listing(f"logs/{run}")):
        content = place.get(one, 0, 8 << 20)
        assert b"canary" not in content, one  # A run leaves no key of a store there.
    here = World(tmp_path / "here", CACHES)
    here.inv("launch", "--provider", "local", "--phase", "base", "--yes")
    assert weights(uri, tmp_path, monkeypatch) == here.model("base_checkpoints")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["s3", "hf"])
def test_local_launch_publishes_to_a_remote_store(kind, request, tmp_path):
    uri, reached = environ(kind, request)
    user = World(tmp_path, {**reached, **ONE_THREAD, "SLIPWAY_STORE": uri})
    told = json.loads(user.inv("launch", "--provider", "local", "--phase", "base", "--yes", "--json"))
    assert told["state"] == "succeeded"
    assert {one.name: one.problem for one in Store(uri).artifacts()} == {
        name: "" for name in ("base_checkpoints/tiny", "datasets/pydocs/text", "datasets/pydocs/tokens", "tokenizer")
    }
    again = json.loads(user.inv("launch", "--provider", "local", "--phase", "base", "--yes", "--json"))
    assert (again["run"], again["ran"]) == (told["run"], []), again
    (final,) = user.json("ckpt.list")
    assert (final["name"], final["kind"], final["phase"]) == ("base_checkpoints/tiny", "final", "base")
    assert user.json("ckpt.verify")[0]["problem"] == ""
    assert not credentials._lent
