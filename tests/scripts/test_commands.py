"""Every command says what it does, explains its flags, and has its place in the reference and in a guide."""

import inspect
import re
from pathlib import Path

import pytest

import tasks

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "commands.md").read_text()
GUIDES = "".join(page.read_text() for page in (*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")))
LINE = 60  # letters of a command's line in `inv --list`
COMMANDS = {name: tasks.namespace[name] for name in tasks.namespace.task_names}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_a_sentence_help_for_its_flags_and_a_place_in_the_docs(name):
    command = COMMANDS[name]
    first, *_ = (command.__doc__ or "").strip().splitlines()
    assert first.endswith(".") and len(first) <= LINE + 1, "its first line is a sentence that fits into the list"
    assert f"\n### `{name}`\n" in REFERENCE, "run: python -m scripts.project.reference write"
    assert re.search(rf"[ `]{re.escape(name)}\b", re.sub(r"(?m)^(?!.*inv).*$", "", GUIDES)), "in no guide"
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
