"""`inv chat --endpoint` with a server of few positions, which answers like vLLM 0.32."""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from infra.errors import SlipwayError
from infra.settings import Settings
from scripts.services import endpoint_chat

pytestmark = pytest.mark.process

ROOM = 30  # Words, as counted by this server.


class Handler(BaseHTTPRequestHandler):
    seen: list[list[dict[str, str]]]

    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        words = sum(len(one["content"].split()) for one in messages)
        if words > ROOM:
            what = (
                f"This model's maximum context length is {ROOM} tokens. However, your prompt contains {words} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
                "input prompt."
            )
            self.reply(400, "application/json", json.dumps({"error": {"message": what, "code": 400}}))
            return
        self.seen.append(messages)
        chunk = {"choices": [{"delta": {"content": f"that was {len(messages)}"}}]}
        self.reply(200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    def reply(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Handler, "seen", [], raising=False)
    one = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=one.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{one.server_port}"
    one.shutdown()
    thread.join()
    one.server_close()


def test_oversized_conversation_continues_without_its_oldest_turns(server, tmp_path, monkeypatch, capsys):
    questions = [f"question {n} of twenty" for n in range(20)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(questions)))
    endpoint_chat.run_chat(server, Settings.load(tmp_path), "m", None, 0.0, 8)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 20
    assert err.count("the oldest turns are dropped") == 1
    assert [one[-1]["content"] for one in Handler.seen] == questions
    assert all(
        [one["role"] for one in talk] == ["user", "assistant"] * (len(talk) // 2) + ["user"] for talk in Handler.seen
    )
    assert {len(talk) for talk in Handler.seen[5:]} == {7}  # As many turns as fit, to the end.


def test_oversized_question_is_reported(server, tmp_path):
    with pytest.raises(SlipwayError, match="maximum context length is 30"):
        endpoint_chat.run_chat(server, Settings.load(tmp_path), "m", "why " * 31, 0.0, 8)
