"""Ends and limits of an allowance with calls under way: the owner ends, revokes and adds money, agents race."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder, environment
from tests.packs.agents.holder import HANG, Agent, billing, is_cut_off, market_of
from tests.world import ROOT, until

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(1200)]

PEER = Path(__file__).with_name("mcp_http_peer.py")


@pytest.fixture
def agent(world):
    """Return an agent in a market whose machines bill and never answer."""
    one = Agent(world, machines="3")
    market_of(world).send_command("/faults", HANG)
    return one


def test_two_agents_with_one_token_start_a_plan_once_and_stay_within_machines_and_money(world, agent):
    plan = agent.plan(spend_usd=1.0)
    twins = [agent.later("launch", plan_id=plan) for _ in range(2)]
    until(lambda: billing(world), "a machine")
    others = [agent.later("launch", plan_id=agent.plan(spend_usd=1.8, steps=steps)) for steps in (5, 6, 7)]
    world.inv("allow", agent.name, "--revoke", "--yes", "--rehearse")
    assert all(is_cut_off(one.result()) for one in (*twins, *others))
    begun = [call["plan_id"] for call in agent.calls() if call["tool"] == "launch" and "run" in call]
    assert plan in begun and len(begun) == len({*begun})
    until(lambda: not billing(world), "the end of all machines", 300)
    rows = world.json("allow", agent.name, "--receipt", "--rehearse")
    assert float(rows["counted_usd"]) <= 5 and not rows["differences"]
    assert len({one["run"] for one in rows["machines"]}) <= 3


def test_revoked_allowance_ends_a_machine_whose_launch_is_under_way(world, agent):
    call = agent.later("launch", plan_id=agent.plan())
    until(lambda: billing(world), "a machine")
    assert agent.calls()[-1] | {"outcome": "begun", "run": "demo-1"} == agent.calls()[-1] and not call.done()
    world.inv("allow", agent.name, "--revoke", "--yes", "--rehearse")
    until(lambda: not billing(world), "the end of the machine", 300)
    assert is_cut_off(call.result()) and "was revoked" in agent.ask("plan", spend_usd=1.0)["refused"]
    said = world.json("allow", agent.name, "--receipt", "--rehearse")
    assert not said["differences"] and [one["run"] for one in said["machines"]][:1] == ["demo-1"]


def test_owner_ends_a_run_of_an_allowance_and_then_the_allowance(world, agent):
    first, second = (agent.later("launch", plan_id=agent.plan(spend_usd=1.0, steps=steps)) for steps in (5, 6))
    until(lambda: billing(world), "a machine")
    world.inv("down", "demo-1", "--rehearse")
    assert is_cut_off(first.result())
    until(lambda: any(one.get("run") == "demo-2" for one in agent.calls()) and billing(world), "a second machine")
    told = world.run("down", agent.name, "--rehearse")
    assert told.returncode == 0 and not billing(world), told.stderr
    assert is_cut_off(second.result())
    assert "result" not in agent.ask("status")
    (row,) = world.json("allow", "--list", "--rehearse")
    assert row["state"] == "revoked" and row["live_machines"] == 0


def test_top_up_gives_money_that_a_plan_may_use_and_revoked_allowances_get_none(world, agent):
    assert "5.00 USD are free" in agent.ask("plan", spend_usd=6.0, phase="base", profile="tiny")["refused"]
    said = world.json("allow", agent.name, "--top-up", "3", "--yes", "--rehearse")
    assert said["total_usd"] == "8.00" and said["state"] == "open"
    assert agent.plan(spend_usd=6.0)
    (row,) = world.json("allow", "--list", "--rehearse")
    assert row["total_usd"] == "8.00" and world.run("allow", agent.name, "--top-up", "-1", "--rehearse").returncode == 2
    assert world.json("allow", agent.name, "--revoke", "--yes", "--rehearse")["state"] == "revoked"
    done = world.run("allow", agent.name, "--top-up", "3", "--yes", "--rehearse")
    assert done.returncode == 2 and "was revoked" in done.stderr


def test_client_of_the_sdk_calls_by_http_with_the_token_only(world, agent):
    python = environment.ensure("mcp", ROOT, cache_folder.default_cache(), "", print)
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    environ = {**world.environ, "SLIPWAY_ALLOWANCE_TOKEN": agent.token}
    words = ["-m", "invoke", "mcp", "--rehearse", "--allowance", agent.name, "--port", str(port)]
    server = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL)
    try:
        line = [str(python), str(PEER), f"http://127.0.0.1:{port}/mcp", agent.token]
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        done = subprocess.run(line, env=plain, capture_output=True, text=True, timeout=300)
    finally:
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["statuses"] == [401, 401] and len(said["tools"]) == 12
    assert said["status"]["total_usd"] == "5.00" and said["is_error"] and "no run or service" in said["refused"]
