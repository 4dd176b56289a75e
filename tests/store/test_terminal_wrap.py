"""Messages on a narrow terminal: words and commands stay whole, columns stay aligned; programs get unchanged text."""

import fcntl
import io
import os
import struct
import termios

import pytest

from store import terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_lines_end_between_words(screen):
    said = "noble-curlew-1 succeeded in 1 min 55 s, and all that it has made is in the store."
    assert terminal.wrap_text(said, screen).split("\n") == [
        "noble-curlew-1 succeeded in 1 min 55 s, and all that it has",
        "made is in the store.",
    ]


@pytest.mark.parametrize("command", [
    "./inv chat chatsft_checkpoints/tiny", "inv down --rehearse noble-curlew-1", "inv down demo",
    "SLIPWAY_STORE=/srv/a ./inv chat base/tiny", "./inv resume noble-curlew-1 --spend-limit 2.00",
])  # fmt: skip
def test_a_command_is_never_cut(screen, command):
    for room in range(20, 60):
        assert command in terminal.wrap_text(f"{'x' * room} go on: {command}; that is all of it for this one", screen)


def test_number_stays_beside_its_unit(screen):
    for room in range(20, 60):
        wrapped = terminal.wrap_text(f"{'x' * room} took 1.1 s or 2 min 05 s for 3.50 GB, 0.25 USD in all", screen)
        assert all(one in wrapped for one in ("1.1 s", "2 min", "05 s", "3.50 GB", "0.25 USD"))


def test_continued_text_of_an_indented_second_column_is_aligned(screen):
    first, second = terminal.wrap_text(
        "  ./inv status    every run: state, step, cost, and all the limits", screen
    ).split("\n")
    assert (first, second) == ("  ./inv status    every run: state, step, cost, and all the", f"{' ' * 18}limits")


def test_continued_text_of_a_list_item_is_indented(screen):
    for indent in ("- ", "  ", "  - "):
        first, second = terminal.wrap_text(
            f"{indent}the machine is taken away: the supervisor continues the run", screen
        ).split("\n")
        assert first.startswith(f"{indent}the") and second.startswith(" " * len(indent)) and second.strip()[0] != "-"


def test_columns_stay_columns(screen):
    said = "/model [NAME]    who answers; with NAME: that one from here on, where there are several\n/help  this"
    first, second, third = terminal.wrap_text(said, screen).split("\n")
    assert first == "/model [NAME]    who answers; with NAME: that one from here"
    assert second == f"{' ' * 17}on, where there are several"
    assert third == "/help  this"


def test_a_program_gets_the_unwrapped_text(screen):
    assert terminal.wrap_text("word " * 40, io.StringIO()) == "word " * 40


def test_the_width_of_the_written_stream_counts(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 43, 0, 0))
    with open(theirs, "w") as stream, open(ours):
        assert terminal.width_of(stream) == 43
    assert terminal.width_of(io.StringIO()) == 80
