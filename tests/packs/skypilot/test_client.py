"""The process with SkyPilot's SDK: one for all clients, replaced after a crash, gone without requests.

Here an interpreter without SkyPilot runs the process, so each answer reports the missing package.
"""

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder, environment
from infra.agent.process import end_all, find
from infra.errors import SlipwayError, UsageError
from infra.transport.unix_socket import short
from packs.skypilot.control import worker
from packs.skypilot.control.client import Client
from tests.infra.agent.world import until
from tests.world import ROOT


@pytest.fixture
def make(tmp_path):
    """Return clients of one installation with a long state folder name."""
    folder = tmp_path / ("long" * 30) / "state"
    made = []

    def client(**more):
        made.append(Client(lambda: Path(sys.executable), folder, **more))
        return made[-1]

    yield client
    for one in made:
        end_all(one._mark(one.socket_file), 0.0)


def pids(client):
    return [one.pid for one in find(client._mark(client.socket_file))]


def answering_process(client):
    """Return the answering process, after the exit of redundant processes."""
    until(lambda: len(pids(client)) <= 1, "one is left")
    return pids(client)[0]


def ask(client):
    with pytest.raises(UsageError, match="the environment of SkyPilot lacks a package"):
        client.ask("limits", timeout_s=60.0)


@pytest.mark.process
def test_one_process_answers_all_clients_on_a_private_socket(make):
    clients = [make() for _ in range(4)]
    threads = [threading.Thread(target=ask, args=(one,)) for one in clients]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    place = clients[0].socket_file
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    before = answering_process(clients[0])
    ask(make())
    assert pids(clients[0]) == [before]
    assert make(environ={**os.environ, "SKYPILOT_API_SERVER_ENDPOINT": "http://127.0.0.1:1"}).socket_file != place


@pytest.mark.process
def test_dead_or_silent_process_is_replaced_and_an_idle_process_exits(make):
    client = make(hear_s=1.0)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        ask(client)
        before = answering_process(client)
        os.kill(before, number)
        ask(client)
        assert answering_process(client) != before
    client.socket_file.unlink()
    until(lambda: not pids(client), "its socket is gone")
    short_lived = make(idle_s=0.5)
    ask(short_lived)
    until(lambda: not pids(short_lived) and not short_lived.socket_file.exists(), "nobody asks")


@pytest.mark.process
def test_process_that_dies_during_a_request_gives_no_answer(make):
    client = make()
    ask(client)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller, short(client.socket_file) as name:
        caller.connect(name)
        os.kill(pids(client)[0], signal.SIGKILL)
        with contextlib.suppress(ConnectionResetError):  # The connection was not accepted.
            assert caller.recv(100).count(b"\n") <= 1
    ask(client)


def test_status_shows_the_last_known_state_while_skypilot_is_slow(tmp_path, monkeypatch):
    may_answer, asked = threading.Event(), []

    def queue(name):
        asked.append(name)
        may_answer.wait(30)
        return [len(asked)]

    monkeypatch.setitem(worker.QUESTIONS, "queue", queue)
    may_answer.set()
    answers = worker.KnownAnswers(tmp_path / "known.json")
    first = answers.get_answer("queue", {"name": "a"}, 0.0, 0.0)
    assert first["answer"] == [1] and answers.get_answer("queue", {"name": "a"}, 0.0, 0.0) == first, "it is fresh"
    monkeypatch.setattr(worker, "FRESH_S", 0.0)
    may_answer.clear()
    another = worker.KnownAnswers(tmp_path / "known.json")  # Of the next process.
    assert stat.S_IMODE((tmp_path / "known.json").stat().st_mode) == 0o600
    time.sleep(0.01)
    assert another.get_answer("queue", {"name": "a"}, 0.0, 0.05) == first
    threading.Timer(0.2, may_answer.set).start()
    newer = another.get_answer("queue", {"name": "a"}, time.time(), 0.0)
    assert newer["at"] > first["at"] and asked[:2] == ["a", "a"]
    monkeypatch.setitem(worker.QUESTIONS, "queue", lambda name: 1 / 0)
    assert "division by zero" in another.get_answer("queue", {"name": "a"}, time.time(), 9.0)["error"]


class OldServer(BaseHTTPRequestHandler):
    """An old API server, by the reported version."""

    def do_GET(self):
        said = b'{"status": "healthy", "api_version": "3", "version": "0.8.0", "commit": "c", "user": null}'
        self.send_response(200)
        for name, value in {"X-SkyPilot-API-Version": "3", "X-SkyPilot-Version": "0.8.0"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format, *args):
        pass


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(900)
def test_skypilot_client_reports_a_server_of_a_different_version_and_a_missing_server(tmp_path):
    python = environment.ensure("skypilot", ROOT, cache_folder.default_cache(), "", print)
    server = HTTPServer(("127.0.0.1", 0), OldServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    environ = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_API_SERVER_ENDPOINT": url}
    client = Client(lambda: python, tmp_path / "state", environ)
    try:
        with pytest.raises(
            SlipwayError, match=r"the API server and skypilot on this machine .* have different versions: .*0\.8\.0"
        ):
            client.ask("server", timeout_s=600.0)
        server.shutdown()
        server.server_close()
        with pytest.raises(
            SlipwayError, match=r"no API server answers: .*; start a server on this machine: .* api start"
        ):
            client.ask("server", timeout_s=600.0)
    finally:
        server.shutdown()
        end_all(client._mark(client.socket_file), 0.0)
