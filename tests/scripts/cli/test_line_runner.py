"""Pack flags of every command: one value per line, valid before all commands, named when the pack is missing."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from invoke import Exit

import tasks
from infra.flags import flag
from scripts.cli import line_runner
from scripts.cli.invoke_patch import CommandParser
from scripts.cli.line_runner import CommandLine, LineFlags
from store import packs

RAN = []


@dataclass(frozen=True, kw_only=True)
class Elsewhere(LineFlags):
    on_machine: str = flag("nowhere", "run the line on that machine")

    def run(self, line):
        RAN.append((self.on_machine, line.words))


def parsed(*values):
    """Return commands as parsed; None: a command about this machine."""
    return [SimpleNamespace(args={} if one is None else {"on_machine": SimpleNamespace(value=one)}) for one in values]


@pytest.mark.parametrize(
    ("values", "found"), [((), "nowhere"), (("", "box", "other"), "box"), ((None, "box"), "box"), (("",), "nowhere")]
)
def test_flag_of_one_command_applies_to_the_whole_line(values, found, monkeypatch):
    monkeypatch.setattr(line_runner, "_records", lambda: [Elsewhere])
    RAN.clear()
    line_runner.run_elsewhere(CommandLine(parsed(*values), None, ["status"], ()))
    assert [(found, ["status"])] == RAN


def test_every_line_runs_here_without_a_pack(monkeypatch):
    monkeypatch.setattr(packs, "installed", lambda: {})
    line_runner.run_elsewhere(CommandLine(parsed("box"), None, ["status"], ()))


@pytest.mark.parametrize("words", [["--control", "box", "status"], ["status", "--control", "box"]])
def test_flag_of_a_missing_pack_is_refused_with_its_name(words, monkeypatch, tmp_path):
    monkeypatch.setattr(packs, "installed", lambda: {})
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    with pytest.raises(Exit) as left:
        CommandParser(words, tasks.namespace).read()
    assert left.value.code == 2
    assert "--control belongs to the pack control_host, and packs/control_host is missing" in left.value.message
