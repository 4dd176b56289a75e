"""Processes are found by token or spared, and no foreign process gets a signal."""

import base64
import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from infra.agent import process, shortage
from infra.agent.execution.progress import RecordTail, Redactor


def sleeper(token: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, process.TOKEN: token}
    )


@pytest.mark.process
def test_only_processes_with_the_exact_token_are_found_and_spared_processes_live() -> None:
    token = f"sw1-test-{time.time_ns()}"
    ours, spared, foreign = sleeper(token), sleeper(token), sleeper(token + "0")
    try:
        assert {one.pid for one in process.find(token)} == {ours.pid, spared.pid}
        assert process.end_all(token, 5.0, spare=[spared.pid]) == []
        assert ours.wait(5) != 0
        assert spared.poll() is None and foreign.poll() is None
    finally:
        for one in (ours, spared, foreign):
            one.kill()
            one.wait()


def test_a_reused_pid_is_a_different_process() -> None:
    stranger = process.Identity(process.boot_id(), os.getpid(), "1")
    assert process.is_alive(process.current_identity())
    assert not process.is_alive(stranger) and not process.send(stranger, 9)


def test_an_unreadable_process_does_not_count_as_gone() -> None:
    me, before = process.current_identity(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        for look in (lambda: process.is_alive(me), lambda: process.find("sw1-test"), lambda: process.end_all("x", 0)):
            with pytest.raises(OSError, match="Too many open files"):
                look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_call_is_retried_only_after_a_shortage() -> None:
    failures = [MemoryError(), OSError(errno.ENOMEM, "memory"), BlockingIOError(errno.EAGAIN, "processes")]

    @shortage.retry_shortages
    def begin(word: str) -> str:
        if failures:
            raise failures.pop(0)
        return word

    assert begin("done") == "done" and not failures
    failures.append(FileNotFoundError(errno.ENOENT, "file"))
    with pytest.raises(FileNotFoundError):
        begin("done")
    assert not failures
    said: list[str] = []
    with shortage.tolerate_shortage(said.append, "a look"):
        raise OSError(errno.ENOSPC, "disk")
    assert said == ["a look failed for now: OSError(28, 'disk')"]
    with pytest.raises(PermissionError), shortage.tolerate_shortage(said.append, "a look"):
        raise PermissionError(errno.EACCES, "file")


@pytest.mark.process
def test_processes_that_survive_are_returned_and_named(monkeypatch) -> None:
    monkeypatch.setattr(process, "send", lambda *_: None)  # otherwise the process may be gone before the look
    token = f"sw1-test-{time.time_ns()}"
    one = sleeper(token)
    try:
        left = process.end_all(token, grace_s=0.0, kill_s=0.0)
        assert [survivor.pid for survivor in left] == [one.pid]
        assert process.describe_survivors(left) == f"processes {one.pid} could not be ended"
    finally:
        one.kill()
        one.wait()


@pytest.mark.process
@pytest.mark.needs("ps")
def test_ps_reports_the_same_parents_as_the_process_table() -> None:
    (row,) = process._rows_of_ps("-p", str(os.getpid()))
    assert (row.pid, row.ppid) == (os.getpid(), os.getppid())
    assert os.getpid() in {one.pid for one in process._rows_of_ps("-ax")}


def test_a_tail_yields_each_whole_record_once_and_skips_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"kind": "old"}\n')
    tail = RecordTail(path)
    with open(path, "a", buffering=1) as file:
        file.write('{"kind": "progress", "done": 1}\n{"kind": "pro')
        file.flush()
        assert tail.read() == [{"kind": "progress", "done": 1}]
        file.write('gress", "done": 2}\nnonsense\n[1]\n')
    assert tail.read() == [{"kind": "progress", "done": 2}]
    assert tail.read() == []


def test_secrets_are_masked_at_any_depth_longest_first() -> None:
    redact = Redactor({"A": "abc", "B": "abcdef", "EMPTY": ""})
    assert redact({"x": ["abcdef", {"abc": "1 abc"}], "n": 3}) == {"x": ["[B]", {"[A]": "1 [A]"}], "n": 3}


def test_a_secret_is_masked_in_every_spelling() -> None:
    secret = "hf_/+abcdefghijklmnopqrstuvwxyz?>"
    redact = Redactor({"TOKEN": secret, "SHORT": "k1"})
    for text in (secret, quote(secret, safe=""), secret.encode().hex(), secret.encode().hex().upper()):
        assert redact(f"before {text} after") == "before [TOKEN] after"
    for lead in range(4):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"user:"[:lead] + secret.encode() + b"@host").decode()
            assert "[TOKEN]" in redact(text) and len(redact(text)) < len("[TOKEN]") + 20
    assert redact("k1 " + b"k1".hex()) == "[SHORT] 6b31"
