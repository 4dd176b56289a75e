"""Loading of variants into an engine: after lost answers and restarts, an engine gets exactly the wanted variants."""

import asyncio

import pytest

from serve.gateway.routing import Target
from serve.replicas import variant_loader
from serve.replicas.variant_loader import VariantLoader, VariantRefused
from serve.variants import Variant

REPLICA = Target(replica_id="r0", url="http://127.0.0.1:1")
A, B = (Variant(source=f"/{name}", identity=f"{name}1", title=name, rank=8) for name in "ab")


class Engine(VariantLoader):
    """A loader with an engine in place of the route. lost: requests whose answer is lost after the work."""

    def __init__(self, held=None, has_some=False, fails=(), lost=()):
        self.held, self.fails, self.lost = dict(held or {}), dict(fails), [*lost]
        self.records = []
        super().__init__(None, REPLICA, self.keep, lambda text: None, has_some)

    def keep(self, loaded, refused, failed):
        self.records.append(dict(loaded))

    async def _ask(self, method, body, timeout_s):
        name = body.get("name", "")
        if method == "POST":
            if name in self.fails:
                raise self.fails.pop(name)
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
