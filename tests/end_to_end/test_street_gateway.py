"""The gateway as a separate process: effects of the controller's end and of the gateway's end on clients."""

import os
import signal
import sqlite3

import pytest

from infra.agent.process import identify, is_alive
from infra.ledger.service_rows import service_lease
from serve.load import LoadTest
from tests.end_to_end.services import GUARD_S, Installation, Traffic, say, serving
from tests.world import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

TOKENS = 8


def new_controller(installation: Installation, before: int) -> bool:
    with installation.journal() as journal:
        holder = journal.leases.holder(service_lease("demo"))
    return holder is not None and holder.pid != before


def test_controllers_restart_without_a_lost_request_and_a_killed_gateway_returns(installation):
    """One controller is killed, another receives SIGTERM, and the supervisor starts new controllers; then the gateway
    dies.
    """
    url = installation.up("demo", installation.model("A", token_s=0.01), "--config", installation.config())["endpoint"]
    engines, gateway = installation.engines("demo"), installation.gateway("demo")
    load = LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=TOKENS)
    with Traffic(load) as traffic:
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = installation.controller("demo")
            os.kill(before, number)
            until(lambda: new_controller(installation, before), "another controller", GUARD_S)  # noqa: B023
            traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert installation.status("demo")["ready"] == 2
    assert installation.gateway("demo") == gateway and is_alive(gateway) and installation.engines("demo") == engines

    with Traffic(load) as traffic:
        installation.kill_gateway("demo")
        until(lambda: installation.gateway("demo"), "another gateway", GUARD_S)
        until(lambda: answers(url), "its port", GUARD_S)
    good = [one for one in traffic.heard if not one.failure]
    # An interrupted stream is not reported as complete.
    assert {one.tokens for one in good} == {TOKENS} and traffic.failures()
    with Traffic(load) as traffic:
        traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert installation.engines("demo") == engines and serving(installation) == {0, 1}
    states = installation.status("demo")
    assert [one["state"] for one in states["replicas"]] == ["READY", "READY"] and not states["held"]
    with sqlite3.connect(
        installation.world.environ["SLIPWAY_STATE_FILE"]
    ) as rows:  # No replica was blamed or restarted.
        assert rows.execute("SELECT count(*) FROM ops").fetchone() == (2,)
    assert {say(url)[1] for _ in range(4)} == {"demo-0", "demo-1"}


def answers(url: str) -> bool:
    try:
        return bool(say(url))
    except OSError:
        return False


def test_gateway_that_outlived_its_controller_ends_with_the_service(installation):
    installation.up("demo", installation.model("A"), "--config", installation.config(1))
    installation.kill_supervisor()
    before = installation.controller("demo")
    os.kill(before, signal.SIGKILL)
    until(lambda: identify(before) is None, "its end", GUARD_S)
    gateway = installation.gateway("demo")
    assert is_alive(gateway)
    installation.world.inv("serve.down", "demo")
    assert not is_alive(gateway)
    installation.world.check_ended()
