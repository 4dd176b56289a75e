"""Providers by name, including providers of packs, and the answer for a missing pack."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.errors import MissingKey, UsageError
from infra.providers import Market, by_name
from infra.selection import registry
from infra.settings import HELD, OWN_MACHINES, VENDORS, Settings, inventory, is_rented
from store import packs
from store.packs import Pack, PackProvider


class Queue:
    """A provider of a pack."""

    name = "queue"

    @staticmethod
    def from_settings(settings: Settings) -> "Queue":
        return Queue()


@pytest.fixture
def settings(tmp_path):
    return Settings.load(tmp_path, environ={"HOME": str(tmp_path)})


def test_a_provider_of_a_pack_is_opened_once_by_name(settings, monkeypatch):
    entry = PackProvider(where=f"{__name__}:Queue")
    monkeypatch.setattr(packs, "installed", lambda: {"line": Pack(name="line", about="x", providers={"queue": entry})})
    assert "queue" in by_name.known_providers()
    found = registry.provider(settings, "queue")
    assert isinstance(found, Queue) and registry.provider(settings, "queue") is found
    assert inventory("queue", settings) is None


class Slow(Queue):
    """A provider that takes long to open, as an inventory about which ssh is asked."""

    may_open = threading.Event()

    @staticmethod
    def from_settings(settings: Settings) -> "Slow":
        assert Slow.may_open.wait(60)
        return Slow()


def test_a_provider_that_takes_long_to_open_delays_no_other_provider(settings, monkeypatch):
    entries = {"slow": PackProvider(where=f"{__name__}:Slow"), "queue": PackProvider(where=f"{__name__}:Queue")}
    monkeypatch.setattr(packs, "installed", lambda: {"line": Pack(name="line", about="x", providers=entries)})
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(registry.provider, settings, "slow") for _ in range(2)]
        try:
            assert isinstance(pool.submit(registry.provider, settings, "queue").result(30), Queue)
            assert not any(one.done() for one in slow)
        finally:
            Slow.may_open.set()
        first, second = (one.result(30) for one in slow)
    assert first is second


def test_a_provider_of_a_missing_pack_names_the_pack_and_counts_as_not_rented(settings, monkeypatch, tmp_path):
    name = packs.words("providers")[0]
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match=f"{name} belongs to the pack {name}, and packs/{name} is missing"):
        registry.provider(settings, name)
    assert name not in by_name.known_providers() and not is_rented(name) and is_rented("own-cloud")


def test_an_unknown_provider_is_refused_with_the_known_names(settings):
    with pytest.raises(UsageError, match="unknown provider 'runpot'; did you mean runpod"):
        registry.provider(settings, "runpot")


def test_the_table_names_the_class_of_every_provider_of_the_core(settings):
    assert set(by_name.PROVIDERS) == {*OWN_MACHINES, *VENDORS}
    for name, where in by_name.PROVIDERS.items():
        assert packs.load(where).name == name and callable(packs.load(where).from_settings)
    assert Market in packs.load(by_name.OF_AN_EXTENSION).__mro__
    assert registry.provider(settings, HELD).name == HELD
    with pytest.raises(MissingKey, match="RUNPOD_API_KEY: inv init runpod"):
        by_name.open_known("runpod", settings)
