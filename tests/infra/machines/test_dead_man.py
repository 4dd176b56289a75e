"""The script of the dead-man timer, run by this machine's shells and with each program that can send a request."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from infra.agent.job import Call
from infra.agent.lifecycle import start_timer
from infra.machines import dead_man
from tests.faults.ends import end_timer
from tests.hosts import until

pytestmark = pytest.mark.process
TOOLS = ("sh", "cat", "date", "mkdir", "sleep", "sed", "printf")
QUERY = '{"query": "mutation ($id: String!) { podTerminate(input: {podId: $id}) }", "variables": {"id": "{POD_ID}"}}'


@pytest.fixture
def vendor():
    """Start a server that records requests; return the server and the address."""

    class Handler(BaseHTTPRequestHandler):
        def do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked.append((self.command, self.path, self.headers["Authorization"], self.headers["User-Agent"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

        do_DELETE = do_POST = do

    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield asked, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def calls(url):
    headers = {"Authorization": "Bearer {POD_KEY}", "Accept": "application/json", "User-Agent": "slipway/1"}
    return (Call("DELETE", f"{url}/pods/{{POD_ID}}", headers), Call("POST", f"{url}/graphql", headers, QUERY))


def begin(script, home, tools, shell="sh"):
    """Run a script with only these programs; `home` is the home of the container."""
    folder = home / "bin"
    folder.mkdir(parents=True)
    for name in (*TOOLS, *tools):
        target = sys.executable if name == "python3" else shutil.which(name)
        (folder / name).symlink_to(target)
    environ = {"PATH": str(folder), "HOME": str(home), "POD_ID": "p-1", "POD_KEY": "rpa_secret"}
    return subprocess.Popen([shutil.which(shell), "-c", script], env=environ, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("tool", ["curl", "python3", "wget"])
def test_the_timer_makes_every_call_with_the_pods_own_key_at_the_deadline(vendor, tmp_path, tool, shell):
    if tool != "python3" and not shutil.which(tool):
        pytest.skip(f"{tool} is not here")
    asked, url = vendor
    process = begin(dead_man.timer_script(int(time.time()) - 5, 60.0, calls(url)), tmp_path, [tool], shell)
    try:
        until(lambda: len(asked) >= 2, "both calls")
    finally:
        process.kill()
        process.wait()
    query = json.loads(QUERY)
    query["variables"]["id"] = "p-1"
    assert asked[0] == ("DELETE", "/pods/p-1", "Bearer rpa_secret", "slipway/1", "")
    assert asked[1][:4] == ("POST", "/graphql", "Bearer rpa_secret", "slipway/1") and json.loads(asked[1][4]) == query


def test_a_changed_limit_moves_the_deadline_and_an_invalid_file_keeps_the_first(vendor, tmp_path, monkeypatch):
    asked, url = vendor
    monkeypatch.setenv("HOME", str(tmp_path))
    now = int(time.time())
    process = begin(dead_man.timer_script(now + 1000, 9999.5, calls(url)), tmp_path, ["curl"])
    try:
        until(lambda: start_timer.read_timer().get("ends_at") == now + 1000, "a timer that is seen")
        # For a limit of an earlier time, from a guard that counts wrongly.
        start_timer.update_deadline(9999.5, 500.0, 10.0)
        assert start_timer.read_timer()["ends_at"] == now + 1000
        start_timer.update_deadline(700.0, 500.0, 10.0)
        assert now + 56 <= start_timer.read_timer()["ends_at"] <= now + 66 and not asked
        start_timer.update_deadline(9999.5, 9000.0, 10.0)  # a limit of an earlier time is out of date
        assert now + 906 <= start_timer.read_timer()["ends_at"] <= now + 916
    finally:
        process.kill()
        process.wait()
    assert start_timer.read_timer() == {}  # the process does not live
    again = tmp_path / "again"
    (again / start_timer.FOLDER).mkdir(parents=True)
    (again / start_timer.FOLDER / start_timer.ENDS_AT).write_text("soon\n")
    process = begin(dead_man.timer_script(now - 1, 60.0, calls(url)), again, ["curl"])
    try:
        until(lambda: asked, "the first deadline")
    finally:
        process.kill()
        process.wait()


def test_the_one_line_start_command_starts_the_timer_and_becomes_the_start_script(vendor, tmp_path):
    asked, url = vendor
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    script.chmod(0o755)
    command = dead_man.start_command(int(time.time()) + 1, 60.0, calls(url), str(script))
    assert "\n" not in command and command.count('"') == 2 and "secret" not in command
    environ = {**os.environ, "HOME": str(tmp_path), "POD_ID": "p-1", "POD_KEY": "rpa_secret"}
    first = subprocess.Popen(shlex.split(command), env=environ, stdin=subprocess.DEVNULL)
    try:
        until((tmp_path / "pid").exists, "the start script")
        until(lambda: (tmp_path / "pid").read_text() == f"{first.pid}\n", "the first process")
        alive = tmp_path / start_timer.FOLDER / start_timer.ALIVE
        timer = int(until(lambda: alive.exists() and alive.read_text(), "the timer").split()[0])
        assert os.getsid(timer) != os.getsid(first.pid)
        until(lambda: len(asked) >= 2, "both calls")
    finally:
        first.kill()
        first.wait()
        assert end_timer(tmp_path) == 2  # the start command restarts a killed timer
