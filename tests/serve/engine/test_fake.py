"""The scripted engine fails like vLLM: the other tests rely on this."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from serve import fake
from tests.serve.scripted_engine import CHAT, GUARD_S, chat, port_of, program

pytestmark = pytest.mark.process


def ask(engine, path=CHAT, **said):
    """Return status and body."""
    request = urllib.request.Request(engine.url + path, json.dumps(chat(**said)).encode() if said else None)
    try:
        with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_crashing_engine_exits_with_its_code_and_never_listens():
    process = program("serve.fake", "--script", '{"crash": 3}', stderr=subprocess.PIPE)
    out, told = process.communicate(timeout=GUARD_S)
    assert (process.returncode, out) == (3, "") and "failed to start" in told


def test_engine_with_a_slow_start_has_no_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = program("serve.fake", "--port", str(port), "--script", '{"start_s": 0.5}')
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert port_of(process) == port
        socket.create_connection(("127.0.0.1", port)).close()
    finally:
        process.kill()
        process.wait(GUARD_S)
        process.stdout.close()


def test_unknown_script_key_is_refused():
    with pytest.raises(ValueError, match="no hangs"):
        fake.read_script('{"hangs": true}')
    with pytest.raises(ValueError, match="fail is 'burn'"):
        fake.FakeScript(fail="burn")


def test_errors_have_the_format_of_vllm(pair):
    engine = pair[0]
    engine.script(api_key="")
    status, body = ask(engine, model="other")
    assert (status, json.loads(body)["error"]["type"]) == (404, "NotFoundError")
    for wrong in ({"max_tokens": 10**6}, {"stream_options": 7}, {"stream_options": {"include_usage": True}}):
        assert ask(engine, **wrong)[0] == 400
    engine.script(fail="busy", times=1)
    status, body = ask(engine, n=1)
    assert status == 503 and b"currently busy" in body
    engine.script(api_key="secret")
    status, body = ask(engine, n=1)
    assert (status, json.loads(body)) == (401, {"error": "Unauthorized"})
    assert ask(engine, "/invocations", n=1)[0] == 200  # The key of vLLM guards only /v1.
    engine.script(api_key="")


def test_hanging_or_full_engine_looks_healthy(pair):
    engine = pair[0]
    engine.script(fail="hang", times=1, max_seqs=1, max_queued=0)
    with socket.create_connection(("127.0.0.1", engine.port)) as hung:
        body = json.dumps(chat()).encode()
        hung.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        end = time.monotonic() + GUARD_S
        while not engine.seen()["running"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert ask(engine, n=1)[0] == 503
        assert ask(engine, "/health") == (200, b"")
        assert b'vllm:num_requests_running{engine="0",model_name="fake"} 1.0' in ask(engine, "/metrics")[1]
    while engine.seen()["running"]:  # The client has disconnected.
        assert time.monotonic() < end
        time.sleep(0.01)


def test_sigterm_without_a_timeout_ends_streams_with_an_error_in_a_200(fresh):
    (engine,) = fresh({"token_s": 0.02})
    request = urllib.request.Request(engine.url + CHAT, json.dumps(chat(stream=True, max_tokens=4000)).encode())
    with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
        reply.readline()
        engine.signal(signal.SIGTERM)
        rest = reply.read()
    assert reply.status == 200 and rest.endswith(b"data: [DONE]\n\n")
    assert json.loads(rest.split(b"data: ")[-2])["error"]["code"] == 500
    assert engine.process.wait(GUARD_S) == 0


def test_worker_outlives_its_engine_and_ignores_sigterm(tmp_path):
    """Row 20: the worker process that remains after the end of an engine."""
    path = tmp_path / "worker"
    process = program("serve.fake", "--worker-file", str(path), "--script", '{"worker": true}')
    worker = 0
    try:
        port_of(process)
        end = time.monotonic() + GUARD_S
        while not path.exists() or not path.read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
        worker = int(path.read_text())
        assert os.getsid(worker) != os.getsid(process.pid)
        process.terminate()
        assert process.wait(GUARD_S) == 0
        os.kill(worker, signal.SIGTERM)
        os.kill(worker, 0)  # The worker exists.
        status = Path(f"/proc/{worker}/status").read_text()
        ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
        assert ignored >> (signal.SIGTERM - 1) & 1
    finally:
        if worker:
            os.kill(worker, signal.SIGKILL)
        process.kill()
        process.wait(GUARD_S)
        process.stdout.close()
