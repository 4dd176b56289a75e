"""The parts of the suite contain every test file exactly once."""

from pathlib import Path

import pytest

from scripts import commands
from scripts.project.dev_environment import ROOT
from scripts.project.test import PARTS, chosen
from store import packs

FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def collected(words: list[str]) -> set[Path]:
    """Return the test files that pytest collects for these words."""
    skipped = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    folders = [ROOT / word for word in words if not word.startswith("--")]
    return {one for one in FILES if any(map(one.is_relative_to, folders)) and not any(map(one.is_relative_to, skipped))}


def test_every_file_is_in_exactly_one_part():
    parts = [collected(chosen([name])) for name in PARTS]
    assert all(parts) and set.union(*parts) == set(FILES) and sum(map(len, parts)) == len(FILES)


@pytest.mark.parametrize("names", [["vendors", "packs"], ["packs", "vendors"], ["rest", *PARTS]])
def test_parts_named_together_contain_the_files_of_each(names):
    assert collected(chosen(names)) == set.union(*(collected(chosen([name])) for name in names))


def test_path_stays_as_typed():
    assert chosen(["tests/faults/test_crash.py", "core"]) == [
        "tests/faults/test_crash.py",
        "tests/test_without_packs.py",
    ]


def test_no_part_has_the_name_of_a_command():
    assert not PARTS.keys() & {name.partition(".")[0] for name in [*commands.COMMANDS, *packs.words("commands")]}
