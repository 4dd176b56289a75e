"""A command on a control host: the command uses the streams of sshd, and exits cleanly after their end."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest

from tests.hosts import until
from tests.world import ROOT

pytestmark = pytest.mark.process
# A signal that arrives after the interpreter's last check and before its sleep is handled when the sleep ends, so every
# sleep is short (seen as two failures of one run, of commands that slept for a minute).
WAIT = "time.sleep(0.05) for _ in range(1200)"


class Served:
    """A session as sshd starts one: the leader of a terminal, or of a process group with three pipes."""

    def __init__(self, folder, code, is_terminal, holds=""):
        self.folder, self.said = folder, b""
        record = folder / "call.json"
        about = {"words": [sys.executable, "-c", code], "cwd": str(folder), "environ": {}, "holds": holds}
        record.write_text(json.dumps(about))
        words = [sys.executable, "-m", "tests.packs.control_host.session_words", str(record)]
        if is_terminal:
            self.pid, self.stdin = pty.fork()
            if self.pid == 0:
                os.chdir(ROOT)
                os.execv(words[0], words)
            self.stdout, self.stderr = self.stdin, -1
        else:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            self.process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, **pipes)
            self.pid = self.process.pid
            self.stdin, self.stdout, self.stderr = (
                os.dup(one.fileno()) for one in (self.process.stdin, self.process.stdout, self.process.stderr)
            )
            for one in (self.process.stdin, self.process.stdout, self.process.stderr):
                one.close()

    def hear(self, words, within_s=30.0):
        """Read the session's output up to these words."""
        deadline = time.monotonic() + within_s
        while words not in self.said:
            assert select.select([self.stdout], [], [], max(0.0, deadline - time.monotonic()))[0], self.said
            piece = os.read(self.stdout, 1 << 16)
            assert piece, self.said
            self.said += piece

    def close(self):
        for one in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(one)

    def end(self):
        """Return the session's exit code."""
        if self.stderr != -1:
            return self.process.wait(30)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def outcome(self):
        return json.loads((self.folder / "call.over").read_text())


def rest(number):
    return b"".join(iter(lambda: os.read(number, 1 << 16), b"")).decode()


def test_command_has_three_pipes_and_its_end_is_recorded(tmp_path):
    code = "import sys; t = sys.stdin.read(); print(t.upper()); print(len(t), file=sys.stderr); sys.exit(7)"
    served = Served(tmp_path, code, is_terminal=False)
    os.write(served.stdin, b"word\n" * 1000)
    os.close(served.stdin)
    assert rest(served.stdout) == "WORD\n" * 1000 + "\n" and rest(served.stderr) == "5000\n"
    assert served.end() == 7
    assert served.outcome() == {"code": 7, "digest": "its digest", "problem": "", "archive": "a copy"}
    assert [one.name for one in tmp_path.iterdir()] == ["call.over"], "the record may hold keys"


def test_copy_that_the_laptop_has_is_not_sent_again(tmp_path):
    served = Served(tmp_path, "", is_terminal=False, holds="its digest")
    assert served.end() == 0
    assert served.outcome()["archive"] == "" and served.outcome()["digest"] == "its digest"
    served.close()


def test_keys_reach_the_command_and_ctrl_z_has_no_effect(tmp_path):
    code = (
        "import sys, time; print('Do this? ', end='', flush=True); print('said', sys.stdin.readline(), flush=True); "
        f"[{WAIT}]"
    )
    served = Served(tmp_path, code, is_terminal=True)
    served.hear(b"Do this?")
    os.write(served.stdin, b"y\x1a\r")
    served.hear(b"said y")
    os.write(served.stdin, b"\x03")
    served.hear(b"KeyboardInterrupt")
    assert served.end() == 128 + 2 and served.outcome()["code"] == 128 + 2
    served.close()


def test_command_notices_a_closed_reader(tmp_path):
    served = Served(tmp_path, "import itertools\nfor n in itertools.count(): print(n, flush=True)", is_terminal=False)
    served.hear(b"100")
    os.close(served.stdout)
    assert "BrokenPipeError" in rest(served.stderr)
    assert served.end() == served.outcome()["code"] == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_command_of_a_disconnected_laptop_gets_a_message_and_exits(tmp_path, is_terminal):
    code = f"""
import pathlib, signal, sys, time
def leave(*_):
    pathlib.Path("left").write_text("in order")
    sys.exit(3)
signal.signal(signal.SIGHUP, leave)
print("ready", flush=True)
[{WAIT}]
"""
    served = Served(tmp_path, code, is_terminal)
    served.hear(b"\n")
    served.close()
    assert served.end() == 3
    assert (tmp_path / "left").read_text() == "in order"
    until((tmp_path / "looked-after").exists, "what a boot would start")
    assert not (tmp_path / "call.over").exists(), "no laptop fetches it"
