"""The near end of a command on a control host: frames that no end of ours sends end in words."""

import json
import queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.control import archive, terminal
from infra.control.frames import COPY, OVER, frame, told
from infra.errors import SlipwayError
from tests.hostile import mistyped, spliced

GOOD = {"code": 3, "digest": "ab", "problem": ""}


class Sent:
    """An exchange whose other end has sent these pieces, and has ended."""

    errors, exited = bytearray(), 0

    def __init__(self, pieces):
        self.pieces = iter(pieces)

    def receive(self):
        return next(self.pieces, b"")


def listen(*pieces):
    return terminal._listen(Sent(pieces), queue.SimpleQueue())


def test_the_last_frame_is_the_outcome():
    assert listen(frame(COPY, b"YWJj"), told(OVER, GOOD)) == terminal.RemoteOutcome(3, "YWJj", "ab", "")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"digest": "", "problem": ""}, "its code is of the wrong kind: None"),
        ({**GOOD, "code": "zero"}, "its code is of the wrong kind: 'zero'"),
        ({**GOOD, "code": True}, "its code is of the wrong kind"),
        ({**GOOD, "code": 2**40}, "expected 0 to 255"),
        ({**GOOD, "code": -1}, "expected 0 to 255"),
        ({**GOOD, "digest": None}, "its digest is of the wrong kind"),
        ({**GOOD, "problem": ["x"]}, "its problem is of the wrong kind"),
        ([], "expected an object"),
    ],
)
def test_an_end_that_cannot_be_read_is_told_in_words(over, words):
    with pytest.raises(SlipwayError, match=f"has ended, and how cannot be read: .*{words}.*; see: ./inv status"):
        listen(told(OVER, over))


def test_a_copy_that_is_no_text_and_a_reason_with_escapes():
    with pytest.raises(SlipwayError, match="how cannot be read: .*ascii"):
        listen(frame(COPY, b"\xff\xfe"), told(OVER, GOOD))
    found = listen(told(OVER, {**GOOD, "problem": "\x1b]52;c;AAAA\x07" + "x" * 10_000}))
    assert found.problem.startswith("\\x1b]52;c;AAAA\\x07xxx") and len(found.problem) == terminal.MOST_PROBLEM


def test_a_copy_without_end_is_not_gathered(monkeypatch):
    monkeypatch.setattr(terminal, "MOST_TEXT", 1 << 20)
    piece, drawn = frame(COPY, b"A" * (1 << 16)), []

    def endless():
        while True:
            drawn.append(1)
            yield piece

    with pytest.raises(SlipwayError, match="as a copy of its journal, at most"):
        terminal._listen(Sent(endless()), queue.SimpleQueue())
    assert len(drawn) == 17
    assert archive.MOST_TEXT > 1 << 20


@settings(max_examples=300, deadline=None)
@given(mistyped(GOOD) | spliced(GOOD), st.binary(max_size=20))
def test_any_end_is_an_outcome_or_words(over, copy):
    try:
        found = listen(frame(COPY, copy), frame(OVER, over))
    except SlipwayError:
        return
    assert 0 <= found.code <= 255 and found.problem.isprintable()
    json.dumps([found.archive, found.digest, found.problem]).encode()
