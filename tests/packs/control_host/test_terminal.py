"""The local end of a command on a control host: streams and terminal over a real sshd, and records with an outcome."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import SlipwayError
from infra.transport.protocol import ConnectionLost, Unreachable
from infra.transport.ssh import Ssh
from packs.control_host.control import terminal
from packs.control_host.control.host import ControlHost
from tests import seeds
from tests.hostile import mistyped, spliced
from tests.hosts import sshd as sshd
from tests.world import ROOT

GOOD = {"code": 3, "digest": "ab", "problem": "", "archive": "YWJj"}


def test_a_record_is_the_outcome():
    assert terminal.outcome_of(json.dumps(GOOD)) == terminal.RemoteOutcome(3, "YWJj", "ab", "")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"digest": "", "problem": ""}, "code is of the wrong kind: None"),
        ({**GOOD, "code": "zero"}, "code is of the wrong kind: 'zero'"),
        ({**GOOD, "code": True}, "code is of the wrong kind"),
        ({**GOOD, "code": 2**40}, "expected 0 to 255"),
        ({**GOOD, "code": -1}, "expected 0 to 255"),
        ({**GOOD, "digest": None}, "digest is of the wrong kind"),
        ({**GOOD, "problem": ["x"]}, "problem is of the wrong kind"),
        ({**GOOD, "archive": "\u00e4"}, "not in ASCII"),
        ([], "expected an object"),
    ],
)
def test_unreadable_outcome_is_reported_with_a_reason(over, words):
    with pytest.raises(SlipwayError, match=f"has ended, but the result cannot be read: .*{words}.*; see: ./inv status"):
        terminal.outcome_of(json.dumps(over))


def test_reason_with_escape_sequences_does_not_control_the_terminal():
    found = terminal.outcome_of(json.dumps({**GOOD, "problem": "\x1b]52;c;AAAA\x07" + "x" * 10_000}))
    assert found.problem.startswith("\\x1b]52;c;AAAA\\x07xxx") and len(found.problem) == terminal.MOST_PROBLEM


@settings(max_examples=seeds.examples(60, 300))
@given(mistyped(GOOD) | spliced(GOOD) | st.binary(max_size=20))
def test_any_record_is_an_outcome_or_an_error(over):
    try:
        found = terminal.outcome_of(over.decode(errors="replace"))
    except SlipwayError:
        return
    assert 0 <= found.code <= 255 and found.problem.isprintable()
    json.dumps([found.archive, found.digest, found.problem]).encode()


LEND = """
import sys
from pathlib import Path
from infra.records import Address
from infra.transport.ssh import Ssh
from packs.control_host.control import terminal

host, port, user, key, pins, code = sys.argv[1:]
machine = Ssh(Address(user, host, int(port), key, "/"), Path(pins))
machine.run(["true"], timeout_s=60)
code = terminal.run_with_terminal(machine, [sys.executable, "-c", code], Path("/"))
machine.close()
sys.exit(code)
"""


@pytest.fixture
def lend(sshd, tmp_path):
    """Return the line of a program that lends stdin, stdout and stderr to a command on a real sshd."""
    one = sshd.address
    words = [sys.executable, "-c", LEND, one.host, str(one.port), one.user, str(one.key), str(tmp_path / "pins")]
    return lambda code: [*words, code]


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen", "ssh")
def test_pipes_keep_both_outputs_apart_and_return_the_exit_code(lend):
    code = "import os, sys; print(sys.stdin.read(), os.isatty(1)); print('talk', file=sys.stderr); sys.exit(3)"
    done = subprocess.run(lend(code), input="said", capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said False\n", "talk\n")


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen", "ssh")
def test_terminal_size_changes_reach_the_command(lend):
    # The signal may arrive during the first print, and a nested print is an error.
    code = (
        "import os, signal, time; "
        "tell = lambda *_: os.write(1, repr(os.get_terminal_size(0)).encode()) and os._exit(5); "
        "signal.signal(signal.SIGWINCH, tell); "
        "print('ready', os.get_terminal_size(0).columns, flush=True); [time.sleep(0.05) for _ in range(1200)]"
    )
    pid, terminal_of = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, lend(code))
    shown, is_resized = b"", False
    resize(terminal_of, 30, 111)
    with contextlib.suppress(OSError):  # This ends the terminal.
        while piece := os.read(terminal_of, 1 << 16):
            shown += piece
            if b"ready 111\r\n" in shown and not is_resized:
                is_resized = True
                resize(terminal_of, 50, 132)
    os.close(terminal_of)
    assert b"ready 111" in shown and b"columns=132, lines=50" in shown, shown
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


@pytest.mark.process
@pytest.mark.needs("sshd", "ssh-keygen")
def test_outcome_is_fetched_once_and_an_unstarted_command_differs_from_a_lost_one(sshd, tmp_path):
    with Ssh(sshd.address, tmp_path / "pins") as machine:
        host, record = ControlHost("box", machine, tmp_path), tmp_path / "calls" / "1.json"
        record.parent.mkdir()
        over = record.with_suffix(".over")
        over.write_text(json.dumps(GOOD))
        assert host.outcome(terminal.LOST, record).code == 3 and not over.exists()
        with pytest.raises(ConnectionLost, match="without the exit code"):
            host.outcome(terminal.LOST, record)
        for code, error in ((1, contextlib.nullcontext()), (terminal.LOST, pytest.raises(Unreachable, match="before"))):
            record.write_text("{}")
            with error:
                assert host.outcome(code, record) == terminal.RemoteOutcome(1)
            assert not record.exists(), "it may hold keys"


def resize(number, rows, columns):
    fcntl.ioctl(number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
