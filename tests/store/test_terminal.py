"""The progress line during a wait, on a real terminal and on other outputs."""

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

from tests.world import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PROGRAM = """
import sys
from store import terminal
with terminal.show_while("demo ends", after_s=0.0):
    sys.stdin.readline()
    terminal.clear()
    print("demo-1 SHUTTING_DOWN", file=sys.stderr, flush=True)
    sys.stdin.readline()
print("over")
"""
LINE = re.compile(r"\r([-|/\\]) demo ends, \d+ s *")
GONE = r"\r +\r"


def test_the_line_moves_during_the_wait_and_makes_room_for_messages():
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = ""
    try:
        while len(set(LINE.findall(seen))) < 2:  # the line has moved
            seen += os.read(ours, 4096).decode()
        child.stdin.write("\n")
        child.stdin.flush()
        while not re.search(GONE + r"demo-1 SHUTTING_DOWN\r\n.*demo ends", seen, re.S):  # and reappears
            seen += os.read(ours, 4096).decode()
        assert child.communicate("\n", timeout=60)[0] == "over\n"
        with contextlib.suppress(OSError):  # no process has it open any more
            while part := os.read(ours, 4096):
                seen += part.decode()
        assert re.search(GONE + r"\Z", seen)
    finally:
        child.kill()
        child.wait(60)
        os.close(ours)


def test_no_line_is_written_to_other_outputs():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, input="\n\n", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("over\n", "demo-1 SHUTTING_DOWN\n")


@pytest.mark.process
@pytest.mark.parametrize(
    ("encoding", "printed"),
    [("ascii", "> + x h?? ?? ~1"), ("latin-1", "> + x hä? ?? ±1"), ("utf-8", "▸ ✓ ✗ häẞ 日本 ±1")],
)
def test_characters_that_a_terminal_lacks_end_no_command(encoding, printed):
    program = "import sys; from store import terminal; terminal.replace_unencodable()\n"
    program += "for one in (sys.stdout, sys.stderr): print('▸ ✓ ✗ häẞ 日本 ±1', file=one)"
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert done.stdout.decode(encoding) == done.stderr.decode(encoding) == f"{printed}\n"
