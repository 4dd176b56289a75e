"""An allowance of a control host: the broker runs beside the keys, and agents on the laptop call by stdio and HTTP."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from infra.agent.environments import cache_folder
from infra.agent.environments import environment as mcp_environment
from tests.hosts import sshd as sshd
from tests.needs import PRIVILEGE
from tests.packs.agents.test_street_limits import PEER
from tests.packs.control_host.host_site import control_bed
from tests.packs.control_host.test_street_control import laptop as laptop
from tests.processes import command_line, environ, pids
from tests.world import ROOT, World

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.pack("agents"),
    pytest.mark.pack("control_host"),
]
BROKER = b"packs.agents.control.broker"


def spoken(line: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """Return the answer of `status` from an MCP server over stdio."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "status", "arguments": {}}},
    ]
    streams = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(line, cwd=ROOT, env=environ, text=True, **streams) as server:
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        found = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
    return found[1]["result"]["structuredContent"]


@pytest.mark.needs("sshd", "ssh-keygen")
def test_broker_runs_on_the_control_host_and_an_agent_of_the_laptop_calls_by_stdio(laptop, sshd):
    laptop.json("control.up", laptop.host)
    said = laptop.json("allow", "demo", "--spend", "2", "--ttl", "1h", "--rehearse")
    (broker,) = [
        pid for pid in pids() if BROKER in command_line(pid) and str(laptop.folder.parent).encode() in environ(pid)
    ]
    assert f"HOME={sshd.folder}".encode() in environ(broker).split(b"\0")
    assert "a shell that can log in to this control host by SSH can read the keys" in said["guarantee"]
    own = {**laptop.environ, "SLIPWAY_ALLOWANCE_TOKEN": said["token"]}
    words = [sys.executable, "-m", "invoke", "mcp", "--rehearse", "--allowance", "demo"]
    assert spoken(words, own)["total_usd"] == "2.00"
    laptop.json("down", "demo", "--rehearse")
    laptop.json("rehearse", "--stop")


@pytest.mark.needs("sshd", "ssh-keygen", "ip", "iptables", PRIVILEGE)
def test_agent_of_the_laptop_calls_the_broker_of_a_control_host_by_http():
    python = mcp_environment.ensure("mcp", ROOT, cache_folder.default_cache(), "", print)
    with tempfile.TemporaryDirectory(prefix="allowed-") as folder, control_bed(Path(folder), 60.0) as here:
        here.up()
        said = here.laptop.json("allow", "demo", "--spend", "2", "--ttl", "1h")
        own = {**here.laptop.environ, "SLIPWAY_ALLOWANCE_TOKEN": said["token"]}
        words = [*here.laptop.prefix, sys.executable, "-m", "invoke", "mcp", "--allowance", "demo", "--port", "8123"]
        server = subprocess.Popen(words, cwd=ROOT, env=own, stdin=subprocess.DEVNULL)
        try:
            line = [*here.laptop.prefix, str(python), str(PEER), "http://127.0.0.1:8123/mcp", said["token"]]
            plain = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
            done = subprocess.run(line, env=plain, capture_output=True, text=True, timeout=300)
        finally:
            server.terminate()
            server.wait()
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout)["status"]["total_usd"] == "2.00"
        error = here.laptop.json("control.down", code=2)["error"]
        assert "demo cannot leave this control host, and nothing was changed" in error and "inv down demo" in error
        here.laptop.inv("down", "demo")
        assert here.laptop.json("control.down")["host"] == here.laptop.host


def test_journal_does_not_move_to_a_control_host_while_an_allowance_is_open(tmp_path):
    world = World(tmp_path, {"SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())})
    world.json("allow", "demo", "--spend", "2", "--ttl", "1h")
    error = world.json("control.up", "nowhere.example", code=2)["error"]
    assert error.startswith("demo cannot leave this machine, and nothing was changed") and "inv down demo" in error
    world.inv("down", "demo")
    assert "cannot leave" not in world.run("control.up", "nowhere.example").stderr
