"""Suggested commands repeat the world flags of the typed line."""

import pytest

import tasks
from scripts.cli import command_hints


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setattr(command_hints, "_carried", {})
    monkeypatch.setattr(command_hints, "_taken", [])
    taken = {"down": ["--rehearse", "--state-file"], "pod.run": ["--rehearse"], "rehearse": [], "config": []}
    command_hints.set_flag_lookup(lambda name: taken.get(name, ()))


def test_hint_without_such_flags_is_unchanged(line):
    assert command_hints.insert_carried_flags("end it: inv down box") == "end it: inv down box"
    assert command_hints.flags() == []


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("end it: inv down box; or ./inv down --all", "end it: inv down X box; or ./inv down X --all"),
        ("see: inv pod.run, then inv rehearse --stop", "see: inv pod.run --rehearse, then inv rehearse --stop"),
        ("inv config, `inv down`, inv downs, inv, whoever", "inv config, `inv down X`, inv downs, inv, whoever"),
        ("inv down --rehearse", "inv down --rehearse"),
        ("inv down: box is gone", "inv down: box is gone"),  # The name of the speaker, no command.
    ],
)
def test_each_command_gets_its_supported_flags_once(line, said, typed):
    command_hints.add_carried_flag("--state-file", "/a b/j")
    command_hints.add_carried_flag("--rehearse")
    assert command_hints.insert_carried_flags(said) == typed.replace("X", "--state-file '/a b/j' --rehearse")


def test_commands_for_models_see_the_store_of_a_rehearsal(monkeypatch):
    monkeypatch.setattr(command_hints, "_carried", {"--rehearse": ""})
    flags = {name: [f"--{one.name}" for one in tasks.namespace[name].flags] for name in ("chat", "eval", "export")}
    monkeypatch.setattr(command_hints, "_taken", [lambda name: flags.get(name, ())])
    for name in flags:
        assert command_hints.insert_carried_flags(f"then: inv {name} sft") == f"then: inv {name} --rehearse sft"
