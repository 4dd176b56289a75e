"""The configured hook sends each notice once; a failing hook has no side effects and is retried."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.agent.process import identify
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.notices import hooks, outbox
from infra.notices.outbox import Notice, send_now
from infra.notices.sending import send
from infra.settings import Settings
from store.backoff import Backoff
from tests.world import ROOT, until

pytestmark = pytest.mark.process

SAID = {"run": "brave-otter-3", "state": "limit", "cost_usd": "1.23", "note": "its money is spent"}
NOTICE = Notice(subject="brave-otter-3", event="limit", key="token-1", note="its money is spent",
                cost_micro_usd=1_230_000)  # fmt: skip


def settings(tmp_path, **environ):
    return Settings.load(ROOT, environ={"SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"), **environ})


def hook(kind, target):
    return hooks.Hook("team", kind, target)


def test_a_command_gets_a_notice_by_environment_and_stdin_but_not_by_argument(tmp_path):
    said = tmp_path / "said"
    command = f'echo "$SLIPWAY_RUN $SLIPWAY_STATE $SLIPWAY_COST_USD $SLIPWAY_NOTE" > {said}; cat >> {said}'
    assert send(hook("command", f"{command}; tr '\\0' ' ' < /proc/$$/cmdline > {said}.line; : s3cr3t"), SAID) == ""
    first, second = said.read_text().splitlines()
    assert first == "brave-otter-3 limit 1.23 its money is spent"
    assert json.loads(second) == SAID
    assert "s3cr3t" not in (tmp_path / "said.line").read_text()


def test_a_failing_command_is_reported():
    assert "exit code 3: no mail today" in send(hook("command", "echo no mail today >&2; exit 3"), SAID)


def test_a_command_may_leave_a_background_process(monkeypatch, tmp_path):
    monkeypatch.setattr("infra.notices.sending.PATIENCE_S", 60.0)
    pid = tmp_path / "pid"
    assert send(hook("command", f"sleep 300 & echo $! > {pid}"), SAID) == ""
    os.kill(int(pid.read_text()), signal.SIGKILL)  # the process lives on, and nothing has waited for the process


def test_an_endless_command_is_ended_with_all_its_processes(monkeypatch, tmp_path):
    monkeypatch.setattr("infra.notices.sending.PATIENCE_S", 1.0)
    pid = tmp_path / "pid"
    said = send(hook("command", f"sleep 300 & echo $! > {pid}; wait"), SAID)
    assert "has not ended after" in said
    until(lambda: identify(int(pid.read_text())) is None, "its child is gone")


def test_a_command_ends_with_its_parent_process(tmp_path):
    pid = tmp_path / "pid"
    program = f"""from infra.notices.hooks import Hook
from infra.notices.sending import send
send(Hook("team", "command", "(sleep 300; :) & echo $! > {pid}; wait"), {SAID})"""
    sender = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    until(lambda: pid.exists() and pid.read_text().strip(), "it is at work")
    sender.kill()
    sender.wait(30)
    until(lambda: identify(int(pid.read_text())) is None, "its child is gone")


def test_an_endlessly_writing_command_uses_no_memory(monkeypatch):
    monkeypatch.setattr("infra.notices.sending.PATIENCE_S", 2.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "has not ended after" in send(hook("command", "yes >&2"), SAID)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


def test_a_huge_answer_of_a_service_is_not_read(monkeypatch):
    monkeypatch.setattr("infra.notices.sending.PATIENCE_S", 5.0)
    sent = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            caller = listener.accept()[0]
            with caller, contextlib.suppress(OSError):
                caller.recv(1 << 16)
                caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                while len(sent) < 16_000:
                    caller.sendall(bytes(1 << 16))
                    sent.append(1 << 16)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert send(hook("post", f"http://127.0.0.1:{listener.getsockname()[1]}/"), SAID) == ""
        thread.join(60)
        assert not thread.is_alive() and sum(sent) < 1 << 26


@pytest.fixture
def address():
    heard: list[tuple[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            is_broken = "broken" in self.path or "once" in self.path and len(heard) == 1
            self.send_response(500 if is_broken else 204)
            self.end_headers()

        def log_message(self, *words):
            """Log nothing to stderr."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_service_gets_its_format_and_no_message_repeats_an_address(address):
    url, heard = address
    for kind in ("post", "slack", "discord", "ntfy"):
        assert send(hook(kind, f"{url}/{kind}"), SAID) == ""
    text = "brave-otter-3: limit: its money is spent (1.23 USD)"
    assert json.loads(heard[0][1]) == SAID
    assert json.loads(heard[1][1]) == {"text": text}
    assert json.loads(heard[2][1])["content"] == text
    assert heard[3] == ("/ntfy", text)
    assert send(hook("post", f"{url}/broken/s3cr3t"), SAID) == "answered with 500"
    assert send(hook("slack", "http://127.0.0.1:9/s3cr3t"), SAID) == "ConnectError"
    assert "s3cr3t" not in repr(hook("slack", "http://127.0.0.1:9/s3cr3t"))


def test_a_notice_is_sent_once_and_retried_after_failures(tmp_path, address, monkeypatch):
    url, heard = address
    ours = settings(tmp_path, SLIPWAY_HOOK_TEAM=f"post {url}/once", SLIPWAY_HOOK_LOG=f"post {url}/log")
    monkeypatch.setattr(outbox, "BACKOFF", Backoff(first_s=0.0, longest_s=0.0))
    assert outbox.put(NOTICE, ["team"], ours) == 1
    assert outbox.put(NOTICE, ["team"], ours) == 0
    assert outbox.waits(ours)
    (problem,) = outbox.deliver(ours)
    assert "by team: answered with 500" in problem and url not in problem
    assert outbox.deliver(ours) == [] and not outbox.waits(ours)
    assert outbox.deliver(ours) == [] and outbox.put(NOTICE, ["team", "log"], ours) == 1
    outbox.deliver(ours)
    assert [path for path, _ in heard] == ["/once", "/once", "/log"]
    for path, _ in outbox.records(ours):
        assert path.stat().st_mode & 0o077 == 0 and url not in path.read_text()


def test_a_hanging_hook_delays_no_other_hook(tmp_path):
    meet = "command touch {0}/{1}; until [ -e {0}/{2} ]; do sleep 0.02; done"
    ours = settings(
        tmp_path, SLIPWAY_HOOK_A=meet.format(tmp_path, "a", "b"), SLIPWAY_HOOK_B=meet.format(tmp_path, "b", "a")
    )
    outbox.put(NOTICE, ["a", "b"], ours)
    assert outbox.deliver(ours) == [] and not outbox.waits(ours)


def test_a_recovered_run_does_not_wait_for_hooks(tmp_path):
    ours = settings(tmp_path, SLIPWAY_HOOK_A=f"command until [ -e {tmp_path}/back ]; do sleep 0.02; done")
    said = []
    send_now(NOTICE, ("a",), ours, said.append, aside=True)
    assert outbox.waits(ours)
    (tmp_path / "back").touch()
    until(lambda: not outbox.waits(ours), "it is sent")
    assert said == []


def test_a_hanging_hook_delays_no_later_notice_and_ends_with_the_process(tmp_path):
    ours = settings(
        tmp_path,
        SLIPWAY_HOOK_A=f"command until [ -e {tmp_path}/later ]; do sleep 0.02; done",
        SLIPWAY_HOOK_B=f"command touch {tmp_path}/later",
    )
    send_now(NOTICE, ("a",), ours, print, aside=True)
    send_now(replace(NOTICE, event="recovered"), ("b",), ours, print)
    assert not outbox.waits(ours)


def test_notices_of_many_threads_are_recorded_once(tmp_path):
    ours = settings(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(lambda _: outbox.put(NOTICE, ["team"], ours), range(64)))
    assert sum(new) == 1 and len(list(outbox.records(ours))) == 1


def test_notice_about_the_end_has_the_cost_of_all_nodes(tmp_path):
    ours = settings(tmp_path, SLIPWAY_HOOK_A="command true")
    with Journal.open(ours.state_file) as journal:
        for rank, run in ((0, "otter"), (1, "otter.1"), (1, "heron.1")):
            asked = json.dumps({"meant": {"notify": "a"}})
            op = journal.plan(token=run, run=run, rank=rank, vendor="lium", rate=36_000_000, asked=asked)
            op = journal.advance(journal.advance(op, "sending"), "created", remote_id=run)
            op = journal.advance(journal.advance(op, "end", reason="x"), "gone")
            journal.note(op, sent_at=op.ended_at - 1000, lived_s=1000.0)
        outbox.notify_end(journal.op("otter"), "succeeded", journal, ours, print)
    ((_, record),) = outbox.records(ours)
    assert record["said"]["cost_usd"] == "20.00"


def test_an_unknown_hook_name_is_refused_with_the_line_to_write(tmp_path):
    ours = settings(tmp_path, SLIPWAY_HOOK_TEAM="slack https://hooks.slack.com/s3cr3t", SLIPWAY_HOOK_ODD="pigeon coop")
    hooks.check(["team", "desktop"], ours)
    with pytest.raises(UsageError, match="did you mean team"):
        hooks.check(["teem"], ours)
    with pytest.raises(UsageError, match="SLIPWAY_HOOK_X=slack https"):
        hooks.check(["x"], ours)
    with pytest.raises(UsageError, match="SLIPWAY_HOOK_ODD: expected one of desktop"):
        hooks.check(["odd"], ours)
    assert all("s3cr3t" not in str(one) for one in ours.list_settings()) and "s3cr3t" not in repr(ours)
