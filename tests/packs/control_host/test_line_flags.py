"""The flag `--control`: before all commands, or at one command."""

import tasks
from scripts.cli.invoke_patch import CommandParser


def test_host_before_all_commands_applies_to_commands_without_a_host():
    for words in (["--control", "box"], ["--control=box"]):
        first, second = CommandParser([*words, "status", "logs", "--control", "other"], tasks.namespace).read()
        assert first.args["control"].value == "box" and second.args["control"].value == "other"


def test_command_about_this_machine_takes_no_host():
    (one,) = CommandParser(["--control", "box", "check"], tasks.namespace).read()
    assert "control" not in one.args
