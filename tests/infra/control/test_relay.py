"""A command on a control host behaves as on the terminal, or in the pipe, of whoever typed it."""

import json
import os
import select
import subprocess
import sys
import time

import pytest

from infra.control import frames
from infra.control.frames import BEGIN, COPY, END, ERR, GONE, INPUT, OUT, OVER, SIGNAL, SIZE, frame, told
from tests.world import ROOT

pytestmark = pytest.mark.process
TERMINAL, PIPES = [True, True, True], [False, False, False]
# A signal that arrives after the interpreter's last look and before its sleep is handled when that sleep ends, so every
# sleep is short (seen as two failures of one run, of commands that slept for a minute).
WAIT = "time.sleep(0.05) for _ in range(1200)"
ABOUT = """
import os, sys
found = [os.isatty(number) for number in (0, 1, 2)]
print(found, *os.get_terminal_size(0) if found[0] else (), flush=True)
print("talk", file=sys.stderr, flush=True)
"""


class Talk:
    """A relay, and what it has sent by now."""

    def __init__(self, *words, tty, cwd=".", holds="", size=(33, 111)):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.relay_words"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.reader, self.said = frames.Reader(), []
        about = {"words": [sys.executable, "-c", *words], "cwd": str(cwd), "environ": {}, "tty": tty, "size": size}
        self.send(told(BEGIN, {**about, "holds": holds}))

    def send(self, content):
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def of(self, kind):
        return b"".join(content for one, content in self.said if one == kind).decode()

    def hear(self, until, within_s=30.0):
        """Read frames until that is true; all that it says then."""
        deadline = time.monotonic() + within_s
        while not until(self):
            left_s = max(0.0, deadline - time.monotonic())
            assert select.select([self.process.stdout], [], [], left_s)[0], self.said
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, self.said
            self.said += self.reader.feed(piece)

    def end(self):
        """Return its exit code, from the last frame."""
        self.hear(lambda one: one.of(OVER))
        self.process.stdin.close()
        over = json.loads(self.of(OVER))
        assert self.process.wait(30) == over["code"]
        self.process.stdout.close()
        return over["code"]


def test_streams_that_are_a_terminal_here_are_one_there_and_the_others_are_pipes():
    talk = Talk(ABOUT + "sys.exit(7)", tty=TERMINAL)
    assert talk.end() == 7
    assert "[True, True, True] 111 33" in talk.of(OUT) and "talk" in talk.of(OUT) and not talk.of(ERR)
    assert talk.of(COPY) == "a copy"
    piped = Talk(ABOUT, tty=[True, False, True], holds="its digest")
    assert piped.end() == 0
    assert piped.of(OUT) == "[True, False, True] 111 33\n" and "talk\r\n" in piped.of(ERR)
    assert piped.of(COPY) == ""  # what is held is the newest


def test_stdin_its_end_and_both_outputs_pass_through_pipes():
    talk = Talk("import sys; t = sys.stdin.read(); print(t.upper()); print(len(t), file=sys.stderr)", tty=PIPES)
    text = b"word\n" * 100_000
    for at in range(0, len(text), frames.CHUNK):
        talk.send(frame(INPUT, text[at : at + frames.CHUNK]))
    talk.send(frame(END))
    assert talk.end() == 0
    assert talk.of(OUT) == text.decode().upper() + "\n" and talk.of(ERR) == "500000\n"


ASKING = "import sys, time; print('Do this? ', end='', flush=True); print('said', sys.stdin.readline()); time.sleep(60)"


def test_keys_reach_a_prompt_and_ctrl_c_the_command():
    talk = Talk(ASKING, tty=TERMINAL)
    talk.hear(lambda one: "Do this?" in one.of(OUT))
    talk.send(frame(INPUT, b"y\x1a\r"))  # Ctrl-Z stops nothing: nobody could wake it up
    talk.hear(lambda one: "said y" in one.of(OUT))
    talk.send(frame(INPUT, b"\x03"))
    assert talk.end() == 128 + 2 or "KeyboardInterrupt" in talk.of(OUT)


def test_a_terminal_that_changes_its_size_does_so_there():
    code = (
        "import os, signal, sys, time; signal.signal(28, lambda *_: sys.exit(print(os.get_terminal_size(0)))); "
        f"print('ready', flush=True); [{WAIT}]"
    )
    talk = Talk(code, tty=TERMINAL)
    talk.hear(lambda one: "ready" in one.of(OUT))
    talk.send(told(SIZE, [50, 132]))
    assert talk.end() == 0
    assert "columns=132, lines=50" in talk.of(OUT)


def test_signals_reach_a_command_in_pipes_and_a_reader_that_leaves_is_noticed():
    talk = Talk(f"import time; print('ready', flush=True); [{WAIT}]", tty=PIPES)
    talk.hear(lambda one: "ready" in one.of(OUT))
    talk.send(frame(SIGNAL, b"15"))
    assert talk.end() == 128 + 15
    talk = Talk("import itertools\nfor n in itertools.count(): print(n, flush=True)", tty=PIPES)
    talk.hear(lambda one: "100" in one.of(OUT))
    talk.send(frame(GONE, OUT))
    talk.hear(lambda one: one.of(OVER))
    assert "BrokenPipeError" in talk.of(ERR)
    assert talk.end() == 1


@pytest.mark.parametrize("tty", [TERMINAL, PIPES])
def test_a_command_whose_laptop_is_gone_is_told_so_and_leaves_by_itself(tmp_path, tty):
    code = f"""
import pathlib, signal, sys, time
def leave(*_):
    print("x" * 1_000_000)
    pathlib.Path({str(tmp_path / "left")!r}).write_text("in order")
    sys.exit(3)
signal.signal(signal.SIGHUP, leave)
print("ready", flush=True)
[{WAIT}]
"""
    talk = Talk(code, tty=tty)
    talk.hear(lambda one: "ready" in one.of(OUT))
    talk.process.stdin.close()  # and nobody reads what it says
    talk.process.wait(30)
    talk.process.stdout.close()
    assert (tmp_path / "left").read_text() == "in order"
