"""The flag `--control`: in front of all commands, or at one of them."""

import tasks
from scripts.cli.invoke_patch import CommandParser


def test_a_host_in_front_of_all_commands_is_that_of_each_which_names_none():
    for words in (["--control", "box"], ["--control=box"]):
        first, second = CommandParser([*words, "status", "logs", "--control", "other"], tasks.namespace).read()
        assert first.args["control"].value == "box" and second.args["control"].value == "other"


def test_a_command_about_this_machine_takes_no_host():
    (one,) = CommandParser(["--control", "box", "check"], tasks.namespace).read()
    assert "control" not in one.args
