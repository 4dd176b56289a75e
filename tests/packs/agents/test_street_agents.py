"""An agent with a token, by the client of the official MCP SDK: a model is trained and served, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.agent.environments import cache_folder, environment
from infra.ledger.journal import Journal
from packs.agents.records import client
from store.artifacts.artifacts import Store
from tests.needs import PRIVILEGE
from tests.packs.agents.holder import Agent
from tests.world import ROOT, until

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(1800)]

PEER = Path(__file__).with_name("mcp_peer.py")
MOST_CALLS = 15


def test_client_of_the_sdk_trains_serves_and_asks_within_fifteen_calls(world, tmp_path):
    agent = Agent(world, machines="2")
    python = environment.ensure("mcp", ROOT, cache_folder.default_cache(), "", print)
    environ = {**world.environ, "SLIPWAY_ALLOWANCE_TOKEN": agent.token}
    line = [str(python), str(PEER), sys.executable, str(ROOT), agent.name]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["calls"] <= MOST_CALLS and said["answer"] and said["refused"].startswith("999.00 USD are asked")
    told = world.json("allow", agent.name, "--receipt", "--rehearse")
    assert len(told["calls"]) == said["calls"] and float(told["spent_usd"]) <= 5
    # The allowance counts a machine until the vendor's answer that it is gone, and so never less than the bill.
    billed = float(world.json("cost", "--rehearse")["usd"])
    assert 0 <= float(told["spent_usd"]) - billed < 0.1


def test_holder_of_a_token_starts_each_plan_once_and_touches_no_other_run(world):
    agent = Agent(world)
    world.json("launch", "--phase", "base", "--profile", "tiny", "--steps", "2", "--gpu", "H100", "-n", "mine", "--yes",
               "--detach", "--rehearse")  # fmt: skip
    for tool in ("logs", "why", "results", "down", "serve_ask"):
        said = agent.ask(tool, run="mine", **({"prompt": "x"} if tool == "serve_ask" else {}))
        assert "is no run or service of this allowance" in said["refused"], tool
    wrong = Agent.__new__(Agent)
    wrong.token, wrong.name, wrong.folder = "allow-x", agent.name, agent.folder
    assert wrong.ask("status") == {"refused": "the token is wrong"}
    plans = [agent.plan() for _ in range(2)]
    said = agent.ask("serve_up", plan_id=plans[0])
    assert "is a plan for launch" in said["refused"]
    assert agent.ask("launch", plan_id=plans[0])["result"]["run"] == "demo-1"
    assert "was used" in agent.ask("launch", plan_id=plans[0])["refused"]
    assert "the allowance has 1" in agent.ask("launch", plan_id=plans[1])["refused"]
    assert "USD are free" in agent.ask("plan", spend_usd=4.5)["refused"]
    assert agent.ends("demo-1") == "succeeded"
    (row,) = [one for one in world.json("status", "--rehearse") if one["run"] == "mine"]
    assert row["state"] in ("running", "succeeded")


CALL = """
import json, socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect(open(sys.argv[1]).read().strip())
made.sendall(json.dumps({"token": sys.argv[2], "tool": "status", "arguments": {}}).encode() + b"\\n")
print(made.makefile().readline())
"""


@pytest.mark.needs(PRIVILEGE)
def test_user_of_an_allowance_calls_the_broker_and_other_users_are_refused(world):
    said = world.json("allow", "apart", "--spend", "1", "--ttl", "1h", "--user", "nobody", "--rehearse")
    place = client.place_file(Path(said["folder"]), "apart")

    def ask(user: str) -> dict[str, Any]:
        line = ["/usr/bin/env", "-i", "/usr/bin/python3", "-I", "-c", CALL, str(place), said["token"]]
        return json.loads(subprocess.run(line, user=user, cwd="/", capture_output=True, text=True, check=True).stdout)

    assert ask("nobody")["result"]["total_usd"] == "1.00"
    assert ask("daemon") == {"refused": "this user may not call the broker"}
    assert "can read none of your keys" in said["guarantee"] or said["leaks"]
    world.inv("allow", "apart", "--revoke", "--yes", "--rehearse")
    until(lambda: not place.parent.exists(), "the end of the broker")


def test_killed_broker_comes_back_and_a_revoked_allowance_ends_its_machines(world):
    agent = Agent(world)
    agent.ask("launch", plan_id=agent.plan(steps=400))
    with Journal.open(agent.folder.with_name("journal.sqlite"), world.environ) as journal:
        holder = journal.leases.holder(f"{client.LEASE}{agent.name}")
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: "result" in agent.ask("status"), "a broker", 120)
    assert agent.ask("status")["result"]["live_machines"] == 1
    world.inv("allow", agent.name, "--revoke", "--yes", "--rehearse")
    assert "was revoked" in agent.ask("plan", spend_usd=1.0)["refused"]

    def is_gone() -> bool:
        return json.loads(world.run("audit", "--rehearse", "--json").stdout)["machines"] == []

    until(is_gone, "the end of all machines", 300)
    told = world.json("allow", agent.name, "--receipt", "--rehearse")
    assert not told["differences"] and told["calls"][-1]["tool"] in ("end", "plan")
    done = world.run("resume", "demo-1", "--yes", "--rehearse")
    assert done.returncode == 2 and "demo-1 belongs to the allowance demo, which would end the run" in done.stderr


def test_training_of_an_agent_moves_no_name_of_the_owner_and_equal_work_starts_once(world, tmp_path):
    agent = Agent(world, machines="2")
    store = Store(str(agent.folder.with_name("artifacts")))
    names = ["tokenizer", "datasets/pydocs/text", "datasets/pydocs/tokens", "problems/sort", "identity_conversations"]
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "data.jsonl").write_text("the owner's")
    for name in names:
        store.publish(tmp_path / "made", name, f"owner-{len(name)}", {}, flat=name == "identity_conversations")
    plans = [agent.plan(phase="sft", steps=2) for _ in range(2)]
    assert agent.ask("launch", plan_id=plans[0])["result"]["run"] == "demo-1"
    same = agent.ask("launch", plan_id=plans[1])["result"]
    assert same == {"rented": False, "message": "the same work is running", "same_as": "demo-1", "next": "status"}
    again = agent.ask("plan", spend_usd=2.0, phase="sft", profile="tiny", steps=2)
    assert "result" in again, again
    assert "plan_id" not in again["result"] and again["result"]["same_as"] == "demo-1", again
    assert agent.ends("demo-1") == "succeeded"
    assert [store.check(name).fingerprint for name in names] == [f"owner-{len(name)}" for name in names]
    found = {one.name for one in store.list_all()[0]} - {*names}
    assert "chatsft_checkpoints/allow-demo" in found and all("allow-demo" in name for name in found), found
