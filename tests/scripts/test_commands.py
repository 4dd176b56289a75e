"""Every command says what it does, explains its flags, and has its place in the README."""

import inspect
from pathlib import Path

import pytest

import tasks

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = {name: tasks.namespace[name] for name in tasks.namespace.task_names}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_a_sentence_help_for_its_flags_and_a_line_in_the_readme(name):
    command = COMMANDS[name]
    assert (command.__doc__ or "").strip(), "no sentence"
    assert f"`{name}`" in README or f"inv {name}" in README, "not in the README"
    flags = set(inspect.signature(command.body).parameters) - {"c", "run", "model", "words"}
    explained = {word.replace("-", "_") for word in command.help}
    assert {flag.rstrip("_") for flag in flags} <= explained | {"run"}, "a flag without help"


def test_whatever_deals_with_pods_can_be_rehearsed():
    cannot = {name for name, one in COMMANDS.items() if "rehearse" not in inspect.signature(one.body).parameters}
    without_pods = {
        "shard",
        "pipeline",
        "tree",
        "tokenizer.train",
        "tokenizer.eval",
        "train",
        "eval",
        "chat",
        "export",
        "serve.export",
        "config",
        "doctor",
        "test",
        "check",
        "hosts",
    }
    of_none = {name for name in COMMANDS if name.startswith(("pool.", "ckpt."))}
    assert cannot == {"rehearse"} | without_pods | of_none


def test_a_rehearsal_takes_whatever_a_launch_does():
    launch, rehearse = (inspect.signature(COMMANDS[name].body).parameters for name in ("launch", "rehearse"))
    assert launch.keys() - {"rehearse"} <= rehearse.keys()
    assert all(launch[name].default == rehearse[name].default for name in launch.keys() & rehearse.keys())
