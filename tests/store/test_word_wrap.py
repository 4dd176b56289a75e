"""Talk on a narrow terminal: words stay whole, commands too, columns as they are; nothing changes for a program."""

import fcntl
import io
import os
import struct
import termios

import pytest

from store import word_wrap


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_lines_end_between_words(terminal):
    said = "noble-curlew-1 succeeded in 1 min 55 s, and all that it has made is in the store."
    assert word_wrap.fitted(said, terminal).split("\n") == [
        "noble-curlew-1 succeeded in 1 min 55 s, and all that it has",
        "made is in the store.",
    ]


@pytest.mark.parametrize("command", [
    "./inv chat chatsft_checkpoints/tiny", "inv down --rehearse noble-curlew-1", "inv down demo",
    "SLIPWAY_STORE=/srv/a ./inv chat base/tiny", "./inv resume noble-curlew-1 --spend-limit 2.00",
])  # fmt: skip
def test_a_command_is_never_cut(terminal, command):
    for room in range(20, 60):
        assert command in word_wrap.fitted(f"{'x' * room} go on: {command}; that is all of it for this one", terminal)


def test_columns_stay_columns(terminal):
    said = "/model [NAME]    who answers; with NAME: that one from here on, where there are several\n/help  this"
    first, second, third = word_wrap.fitted(said, terminal).split("\n")
    assert first == "/model [NAME]    who answers; with NAME: that one from here"
    assert second == f"{' ' * 17}on, where there are several"
    assert third == "/help  this"


def test_a_program_gets_what_was_said(terminal):
    assert word_wrap.fitted("word " * 40, io.StringIO()) == "word " * 40


def test_the_width_is_that_of_the_stream_which_is_written(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 43, 0, 0))
    with open(theirs, "w") as stream, open(ours):
        assert word_wrap.width_of(stream) == 43
    assert word_wrap.width_of(io.StringIO()) == 80
