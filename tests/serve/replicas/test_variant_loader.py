"""Loading of variants into an engine: after lost answers and restarts, an engine gets exactly the wanted variants."""

import asyncio
from dataclasses import replace

import pytest

from serve.gateway.routing import Target
from serve.replicas import variant_loader
from serve.replicas.variant_loader import EngineFailed, VariantLoader, VariantRefused
from serve.variants import Variant
from store.backoff import Backoff

REPLICA = Target(replica_id="r0", url="http://127.0.0.1:1")
A, B = (Variant(source=f"/{name}", identity=f"{name}1", title=name, rank=8) for name in "ab")


class Engine(VariantLoader):
    """A loader with an engine in place of the route.

    fails: the error of the next load by name, or a list of errors. lost: requests whose answer is lost after the work.
    """

    def __init__(self, held=None, has_some=False, fails=(), lost=()):
        self.held, self.lost = dict(held or {}), [*lost]
        self.fails = {name: one if isinstance(one, list) else [one] for name, one in dict(fails).items()}
        self.records, self.loads = [], 0
        super().__init__(None, REPLICA, self.keep, lambda text: None, has_some)

    def keep(self, loaded, refused, failed):
        self.records.append(dict(loaded))

    async def _ask(self, method, body, timeout_s):
        name = body.get("name", "")
        if method == "POST":
            self.loads += 1
            if self.fails.get(name):
                raise self.fails[name].pop(0)
            self.held[name] = body["identity"]
        elif method == "DELETE":
            self.held.pop(name, None)
        if method in self.lost:
            self.lost.remove(method)
            raise asyncio.TimeoutError
        return dict(self.held)

    def settle(self, wanted):
        """Reconcile while due; return the number of passes."""

        async def leave():
            pass

        for count in range(9):
            if not self.is_due(wanted):
                return count
            asyncio.run(self.reconcile(wanted, leave))
        raise AssertionError("the loader never settles")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(variant_loader, "RETRY_S", 0.0)
    monkeypatch.setattr(variant_loader, "BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(variant_loader, "GRACE_S", 0.0)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_removed_last_variant_leaves_the_engine_after_a_lost_answer(method):
    one = Engine(lost=[method])
    one.settle({"a": A})
    assert one.held == {"a": "a1"}
    one.settle({})
    assert one.held == {} == one.records[-1]


def test_variant_of_an_earlier_controller_leaves_the_engine():
    one = Engine(held={"a": "a1"}, has_some=True)
    assert one.settle({}) == 1
    assert one.held == {} == one.records[-1]
    assert Engine().settle({}) == 0  # an engine that never had a variant is not asked


def test_failed_load_is_tried_again_and_delays_no_other_variant():
    one = Engine(fails={"a": ValueError("status 503: no network")})
    assert one.settle({"a": A, "b": B}) == 2
    assert one.records[0] == {"b": "b1"} and one.records[-1] == one.held == {"a": "a1", "b": "b1"}
    assert not one.refused
    assert not one.failed
    odd = Engine(fails={"a": VariantRefused("NaN")})
    assert odd.settle({"a": A, "b": B}) == 1
    assert odd.refused == {"a1": "NaN"} and odd.held == {"b": "b1"}


def test_variant_in_the_engine_is_recorded_while_another_fails():
    one = Engine(held={"b": "b1"}, has_some=True, fails={"a": ValueError("status 503: no network")})

    async def leave():
        pass

    asyncio.run(one.reconcile({"a": A, "b": B}, leave))
    assert one.records == [{"b": "b1"}] and one.failed == {"a1": "status 503: no network"}
    assert one.is_due({"a": A, "b": B})


@pytest.mark.parametrize(
    ("errors", "loads", "is_refused"),
    [
        ([EngineFailed("no module q")] * 5, 3, True),
        ([EngineFailed("no module q")] * 2, 3, False),
        ([EngineFailed("1 GB left"), EngineFailed("2 GB left")] * 2, 5, False),
        ([ValueError("status 503: no network")] * 6, 7, False),
        ([EngineFailed("a"), ValueError("status 503: b"), EngineFailed("a"), EngineFailed("a")], 5, False),
    ],
    ids=["equal", "two", "changing", "network", "interrupted"],
)
def test_variant_that_the_engine_never_loads_is_refused(errors, loads, is_refused):
    one = Engine(fails={"a": errors[:]})
    one.settle({"a": A})
    assert one.loads == loads and one.failed == {}
    assert one.refused == ({"a1": "no module q, 3 times in a row"} if is_refused else {})
    assert one.held == ({} if is_refused else {"a": "a1"})


def test_failed_variant_waits_longer_each_time_and_delays_no_new_variant(monkeypatch):
    waits = []
    monkeypatch.setattr(variant_loader.Backoff, "wait_s", lambda self, failures: waits.append(failures) or 3600.0)
    one = Engine(fails={"a": [ValueError("status 503: no network")] * 9})
    assert one.settle({"a": A}) == 2 and one.loads == 1  # the second pass asks what the engine has
    assert one.settle({"a": A, "b": B}) == 1 and one.held == {"b": "b1"}
    assert one.failed == {"a1": "status 503: no network"} and waits == [1]
    one.failures = {name: replace(failure, not_before=0.0) for name, failure in one.failures.items()}
    one.settle({"a": A, "b": B})
    assert one.loads == 3 and waits == [1, 2]
