"""The spelling of flags in the help of a command."""

import pytest

import tasks
from scripts.cli import flag_help


@pytest.mark.parametrize("command, spelled", [("test", "-k TEXT"), ("cost", "-e TEXT"), ("test", "-y, --yes")])
def test_a_flag_of_one_letter_has_one_dash(command, spelled):
    text = list(flag_help.lines(command, tasks.namespace[command]))
    assert any(line.startswith(f"  {spelled} ") or line == f"  {spelled}" for line in text)
