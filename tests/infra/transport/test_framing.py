"""Frames of remote output: pieces of any size, valid process ids, text with parts of marks."""

import os
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra.transport.framing import Frame, NoFrame, login_line, shown

FRAME = Frame("b" * 16 + "c" * 16, "e" * 16 + "f" * 16)
TEXT = st.lists(st.sampled_from([b"e", b"e" * 15, FRAME.end.encode()[:-1], b"\n", b"1", b"\0\xff", b"text"])).map(
    b"".join
)


@given(talk=TEXT, content=TEXT, after=TEXT, cuts=st.lists(st.integers(0, 200)))
def test_the_text_between_marks_is_found_for_any_split(talk, content, after, cuts):
    raw = talk + f"{FRAME.begin} 77\n".encode() + content + f"{FRAME.end} 5\n".encode() + after
    stream, found, at = FRAME.stdout, b"", 0
    for cut in [*sorted(cuts), len(raw)]:
        found += stream.feed(raw[at:cut]) if cut > at else b""
        at = max(at, cut)
    assert (found, stream.exit_code, stream.shell_pid, stream.is_over) == (content, 5, 77, True)
    assert stream.shell_banner == talk[:300]


def test_text_that_cannot_be_a_mark_is_passed_on_at_once():
    stream = FRAME.stdout
    stream.feed(f"{FRAME.begin} 9\n".encode())
    assert stream.feed(b"question?") == b"question?"
    assert stream.feed(b"eee") == b"" and stream.feed(b"!") == b"eee!"


@pytest.mark.parametrize("said", ["", "1", "0", "-1", "-9", "9x", "1 2", "9" * 30, "x"])
def test_a_pid_that_must_not_be_signalled_is_refused(said):
    stream = FRAME.stdout
    stream.feed(f"12345\n{FRAME.begin} {said}\n".encode())
    assert stream.shell_pid is None


def test_endless_text_before_the_mark_is_no_output():
    stream = FRAME.stdout
    with pytest.raises(NoFrame):
        for _ in range(100):
            stream.feed(b"12345\n" * 10_000)
    assert len(stream.shell_banner) <= 300


def test_shell_output_is_shown_without_terminal_control_codes():
    assert shown(b"\x1b]0;title\x07\x1b[31mred\r\nnext\xff") == "]0;title [31mred next\ufffd"
    assert len(shown(b"x" * 300)) == 120


@pytest.mark.process
@pytest.mark.parametrize("around", ['exec sh -c "$LINE"', "eval $LINE"])
@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=60))
@example(text="    if a:\n        b = 'c  d'  ")
def test_a_script_arrives_unchanged(around, text):
    script = "printf '%s.' " + "'" + text.replace("'", "'\\''") + "'"
    environ = {**os.environ, "LINE": login_line(script).line}
    done = subprocess.run(["sh", "-c", around], env=environ, capture_output=True, timeout=60)
    assert done.stdout.decode() == f"{text}."


def test_an_echoed_command_line_contains_no_mark():
    frame = Frame()
    line = login_line(frame.wrap("true"), frame.opening).line
    assert frame.begin not in line and frame.end not in line and Frame() != frame
