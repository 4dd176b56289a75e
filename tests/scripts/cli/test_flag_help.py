"""The spelling of flags in the help of a command."""

import pytest

import tasks
from scripts.cli import flag_help
from scripts.cli.invoke_patch import CommandParser


@pytest.mark.parametrize("command, spelled", [("test", "-k TEXT"), ("cost", "-e TEXT"), ("test", "-y, --yes")])
def test_flag_of_one_letter_has_one_dash(command, spelled):
    text = list(flag_help.lines(command, tasks.namespace[command]))
    assert any(line.startswith(f"  {spelled} ") or line == f"  {spelled}" for line in text)


def titles(*words: str) -> list[str]:
    """Return the titles of the groups in the help of a line, and the number of lines."""
    read = CommandParser([*words, "--help"], tasks.namespace)
    (here,) = read.read()
    lines = list(flag_help.lines(words[0], tasks.namespace[words[0]], here.as_kwargs))
    assert len(lines) <= flag_help.MOST_LINES
    return [line for line in lines if line and not line.startswith(" ")]


def test_help_of_a_launch_begins_with_the_groups_of_its_phase_and_provider(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    usual = titles("launch")
    assert usual[usual.index("Flags") :][:4] == ["Flags", "Work", "Machine", "What ends it"]
    assert not {"Phase rl", "Phase dlm", "Own machines", "Rented machines"} & set(usual)
    reinforced = titles("launch", "--phase", "sft+rl", "--provider", "lium")
    assert reinforced.index("Phase rl") < reinforced.index("Rented machines") < reinforced.index("Work")
    assert "Own machines" not in reinforced
    assert "Own machines" in titles("launch", "--provider", "ssh")


def test_omitted_groups_are_named_and_help_all_shows_them():
    launch = tasks.namespace["launch"]
    every = "\n".join(flag_help.lines("launch", launch))
    short = " ".join(flag_help.lines("launch", launch, {}))
    for title, flags in flag_help.grouped(launch.flags).items():
        assert title in short
        assert all(f"  {flag_help.spelling(one)}" in every for one in flags)
    assert "--help-all" not in every


def test_command_with_few_flags_shows_all_of_them():
    for name in tasks.namespace.task_names:
        task = tasks.namespace[name]
        every, short = list(flag_help.lines(name, task)), list(flag_help.lines(name, task, {}))
        assert short == every or len(every) > flag_help.MOST_LINES - flag_help.ROOM_FOR_THE_REST, name


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_description_fills_the_lines_of_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in tasks.namespace.task_names:
        text = list(flag_help.lines(name, tasks.namespace[name]))
        about = text[2 : next(at for at, line in enumerate(text) if at > 2 and line.startswith(("Example: ", "Flags")))]
        for line, following in zip(about, about[1:], strict=False):
            assert not line or not following or len(line) + 1 + len(following.split()[0]) > min(columns, 110), name
