"""Who wants to know how runs end is told, by a command or at an address, and a failure of that stops nothing."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.runs.notify import notify

pytestmark = pytest.mark.process

WORDS = {"run": "brave-otter-3", "state": "limit", "cost_micro_usd": 1_230_000, "note": "its money is spent"}


def test_a_command_is_told_by_its_environment_and_on_stdin(tmp_path):
    said = tmp_path / "said"
    command = f'echo "$SLIPWAY_RUN $SLIPWAY_STATE $SLIPWAY_COST_USD $SLIPWAY_NOTE" > {said}; cat >> {said}'
    assert notify(command, **WORDS) == ""
    first, second = said.read_text().splitlines()
    assert first == "brave-otter-3 limit 1.23 its money is spent"
    assert json.loads(second) == {"run": "brave-otter-3", "state": "limit", "cost_usd": "1.23", "note": WORDS["note"]}


def test_a_command_that_fails_is_told_and_nobody_is_told_nothing():
    assert "exit code 3: no mail today" in notify("echo no mail today >&2; exit 3", **WORDS)
    assert notify("", **WORDS) == ""


@pytest.fixture
def address():
    heard: list[tuple[str, dict]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(500 if "broken" in self.path else 204)
            self.end_headers()

        def log_message(self, *words):
            """Nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_gets_json_and_its_secret_is_in_no_message(address):
    url, heard = address
    assert notify(f"{url}/hook", **WORDS) == ""
    assert heard == [("/hook", {"run": "brave-otter-3", "state": "limit", "cost_usd": "1.23", "note": WORDS["note"]})]
    assert notify(f"{url}/broken/s3cr3t", **WORDS) == "notice of brave-otter-3: answered with 500"
    said = notify("http://127.0.0.1:9/s3cr3t", **WORDS)
    assert "ConnectError" in said and "s3cr3t" not in said
