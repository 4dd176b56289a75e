"""A conversation at the terminal: commands, history, and the report about an answer."""

import io
import json
import stat
import sys

import pytest

from trainer import terminal_chat
from trainer.terminal_chat import ConversationFiles


class EchoPartner:
    """A chat partner that repeats the input, word by word, but does not answer the question `no`."""

    name, recoverable_errors = "echo", (ValueError,)

    def __init__(self):
        self.system, self.messages, self.tokens = "", [], None

    def stream_answer(self, words):
        if words == "no":
            raise ValueError("that is too long")
        said = f"{self.system}|{words}" if self.system else words
        self.messages.append({"role": "user", "content": words})
        self.tokens = 0
        for piece in said.split():
            self.tokens += 1
            yield f"{piece} "
        self.messages.append({"role": "assistant", "content": said})

    def clear_history(self):
        self.messages.clear()

    def describe(self):
        return "echo of nobody"

    def switch_model(self, name):
        self.name = name
        return f"{name} from here on"


class Typed(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def hold(tmp_path, monkeypatch, capsys):
    """Type lines into a conversation; return (stdout, stderr)."""

    def hold(*lines, partner=None, typed=True):
        text = "".join(f"{line}\n" for line in lines)
        monkeypatch.setattr(sys, "stdin", Typed(text) if typed else io.StringIO(text))
        terminal_chat.run_chat(
            partner or EchoPartner(), place=ConversationFiles(str(tmp_path / "state" / "history"), str(tmp_path))
        )
        return capsys.readouterr()

    return hold


def test_terminal_shows_model_and_speed_and_a_pipe_gets_only_the_answers(hold):
    out, err = hold("hello there")
    assert out == "hello there \n"
    assert "echo of nobody; /help" in err and "[echo: 2 tokens in " in err and " tok/s, the first after " in err
    assert hold("hello there", typed=False) == ("hello there \n", "")


def test_system_prompt_and_model_can_be_changed(hold):
    out, err = hold("/system be brief", "hi", "/system", "/system -", "hi", "/model", "/model other", "no", "/nonsense")
    assert out == "be brief|hi \nhi \n"
    assert err.count("system prompt: be brief") == 2 and "system prompt: none" in err
    assert "other from here on" in err and "that is too long" in err and "/nonsense is not a command" in err


def test_conversation_is_saved_in_the_training_format_and_no_file_is_overwritten(hold, tmp_path):
    out, err = hold(
        "/save early.jsonl", "/system be brief", "größer 😀", "/save talk.jsonl", "/save talk.jsonl", "/save /proc/x/y"
    )
    (row,) = (tmp_path / "talk.jsonl").read_text(encoding="utf-8").splitlines()
    assert [one["role"] for one in json.loads(row)["messages"]] == ["system", "user", "assistant"]
    assert json.loads(row)["messages"][1]["content"] == "größer 😀"
    assert stat.S_IMODE((tmp_path / "talk.jsonl").stat().st_mode) == 0o600
    assert "the conversation is empty" in err and "already exists" in err and "/proc/x/y was not written" in err


def test_history_is_private_and_long_entries_are_cut(hold, tmp_path):
    history = tmp_path / "state" / "history"
    hold("one", "one", "/model", "two")
    assert history.read_text() == "one\n/model\ntwo\n"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    hold("three", typed=False)
    assert history.read_text() == "one\n/model\ntwo\n"
    history.write_text("".join(f"{n}\n" for n in range(2 * terminal_chat.MOST_LINES + 1)))
    hold("last")
    kept = history.read_text().splitlines()
    assert len(kept) == terminal_chat.MOST_LINES + 1 and kept[-2:] == [str(2 * terminal_chat.MOST_LINES), "last"]


def test_unwritable_history_does_not_end_a_conversation(hold, tmp_path):
    (tmp_path / "state").write_text("a file")
    out, err = hold("one", "two")
    assert out == "one \ntwo \n" and err.count("the history of typed lines is not saved") == 1


@pytest.mark.parametrize(
    ("tokens", "took", "first", "said"),
    [(10, 2.0, 0.5, "10 tokens in 2.00 s, 5.0 tok/s, the first after 0.50 s"), (1, 0.0, None, "1 token in 0.00 s"),
     (None, 1.25, 0.25, "1.25 s, the first after 0.25 s"), (0, 1.0, None, "0 tokens in 1.00 s")],
)  # fmt: skip
def test_speed_is_all_tokens_over_the_whole_time(tokens, took, first, said):
    assert terminal_chat.pace(tokens, took, first) == said
