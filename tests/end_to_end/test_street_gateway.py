"""The gateway as a process of its own: what the end of its controller, and its own end, cost those who ask."""

import os
import signal
import sqlite3

import pytest

from infra.agent.process import identify, is_alive
from infra.ledger.service_rows import service_lease
from serve.load import LoadTest
from tests.end_to_end.services import GUARD_S, Place, Traffic, say, serving
from tests.world import until

pytestmark = pytest.mark.process

TOKENS = 8


def another_controller(place: Place, before: int) -> bool:
    with place.journal() as journal:
        holder = journal.leases.holder(service_lease("demo"))
    return holder is not None and holder.pid != before


@pytest.mark.nightly
def test_controllers_come_and_go_without_a_dropped_request_and_a_gateway_that_is_killed_is_back(place):
    """One is killed, one gets SIGTERM, and the supervisor begins others; then the gateway."""
    url = place.up("demo", place.model("A", token_s=0.01), "--config", place.config())["endpoint"]
    engines, gateway = place.engines("demo"), place.gateway("demo")
    load = LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=TOKENS)
    with Traffic(load) as traffic:
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = place.controller("demo")
            os.kill(before, number)
            until(lambda: another_controller(place, before), "another controller", GUARD_S)  # noqa: B023
            traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert place.status("demo")["ready"] == 2
    assert place.gateway("demo") == gateway and is_alive(gateway) and place.engines("demo") == engines

    with Traffic(load) as traffic:
        place.kill_gateway("demo")
        until(lambda: place.gateway("demo"), "another gateway", GUARD_S)
        until(lambda: answers(url), "its port", GUARD_S)
    good = [one for one in traffic.heard if not one.failure]
    assert {one.tokens for one in good} == {TOKENS} and traffic.failures()  # what was cut off is not called whole
    with Traffic(load) as traffic:
        traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert place.engines("demo") == engines and serving(place) == {0, 1}
    states = place.status("demo")
    assert [one["state"] for one in states["replicas"]] == ["READY", "READY"] and not states["held"]
    with sqlite3.connect(place.world.environ["SLIPWAY_STATE_FILE"]) as rows:  # nobody was blamed, nor begun anew
        assert rows.execute("SELECT count(*) FROM ops").fetchone() == (2,)
    assert {say(url)[1] for _ in range(4)} == {"demo-0", "demo-1"}


def answers(url: str) -> bool:
    try:
        return bool(say(url))
    except OSError:
        return False


@pytest.mark.nightly
def test_a_gateway_that_outlived_its_controller_is_ended_with_its_service(place):
    place.up("demo", place.model("A"), "--config", place.config(1))
    place.kill_supervisor()
    before = place.controller("demo")
    os.kill(before, signal.SIGKILL)
    until(lambda: identify(before) is None, "its end", GUARD_S)
    gateway = place.gateway("demo")
    assert is_alive(gateway)
    place.world.inv("serve.down", "demo")
    assert not is_alive(gateway) and place.world.processes() == []
