"""Commands and flags that were once released are still spelled as they were.

tests/scripts/spelling.txt holds a line per command: its name and its flags. Lines and words may be added, never taken
away: a flag that gets a better name keeps the old one as an alias.
"""

from pathlib import Path

import pytest

import tasks

LINES = Path(__file__).with_name("spelling.txt").read_text(encoding="utf-8").splitlines()


def flags_of(name: str) -> set[str]:
    """Return every spelling of every flag of a command, as it is typed."""
    names = [spelling for one in tasks.namespace[name].get_arguments() for spelling in one.names]
    return {f"{'--' if len(one) > 1 else '-'}{one.replace('_', '-')}" for one in names}


@pytest.mark.parametrize("line", LINES, ids=[line.split()[0] for line in LINES])
def test_a_command_and_its_flags_are_spelled_as_they_were(line):
    name, *flags = line.split()
    assert set(flags) <= flags_of(name)


def test_every_command_is_in_the_list():
    assert set(tasks.namespace.task_names) <= {line.split()[0] for line in LINES}
