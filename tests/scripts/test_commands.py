"""Every command has a summary, help for each flag, and a place in the reference and in a guide."""

import re
import shlex
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

import tasks
from scripts.cli.context import watch_seconds
from scripts.cli.flags import OneRunFlags, Output
from scripts.cli.invoke_patch import CommandParser
from scripts.commands import COMMANDS as CORE
from scripts.pods.held_pod import OnPodFlags
from scripts.runs.watching import ELSEWHERE_S, HERE_S, VENDOR_S
from store import packs

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "commands.md").read_text()
REFERENCE += "".join(page.read_text() for page in packs.FOLDER.glob("*/reference.md"))
GUIDES = "".join(
    page.read_text() for page in (*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), *packs.FOLDER.glob("*/README.md"))
)
LINE = 60  # Letters of a command's line in `inv --list`.
SHARED = (Output, OnPodFlags)  # Records of several commands.
COMMANDS = {name: tasks.namespace[name] for name in tasks.namespace.task_names}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_has_a_sentence_help_for_its_flags_and_a_place_in_the_docs(name):
    command = COMMANDS[name]
    first, *_ = (command.__doc__ or "").strip().splitlines()
    assert first.endswith(".") and len(first) <= LINE + 1, "its first line is a sentence that fits into the list"
    assert f"\n### `{name}`\n" in REFERENCE, "run: python -m scripts.project.reference write"
    assert re.search(rf"[ `]{re.escape(name)}\b", re.sub(r"(?m)^(?!.*inv).*$", "", GUIDES)), "in no guide"
    assert all(one.about for one in command.flags), "a flag without help"
    program, *words = shlex.split(command.example)
    words = words[: words.index("--")] if "--" in words else words
    assert program == "inv" and [one.name for one in CommandParser(words, tasks.namespace).read()][-1:] in (
        [name],
        ["down"],
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_table_and_file_of_a_command_have_the_same_summary(name):
    entries = CORE | {name: one for pack in packs.installed().values() for name, one in pack.commands.items()}
    command = COMMANDS[name].loaded
    assert command.__doc__.strip().splitlines()[0] == entries[name].summary
    assert command.work.__name__.rstrip("_") == name.rpartition(".")[2]
    assert command.work.__module__ == entries[name].where.partition(":")[0]
    assert command.record is None or command.record.__module__ == command.work.__module__ or command.record in SHARED


@pytest.mark.process
def test_files_of_commands_go_below_var_by_default_and_git_ignores_inventories():
    defaults = {
        name: said[1]
        for name, command in COMMANDS.items()
        for one in command.flags
        if one.spelling == "out" and (said := re.search(r"default: (\S+)\)", one.about))
    }
    assert "export" in defaults and {at.partition("/")[0] for at in defaults.values()} <= {"var", "stdout"}, defaults
    examples = sorted(path.name.removesuffix(".example") for path in DOCS.parent.glob("*.yaml.example"))
    done = subprocess.run(["git", "check-ignore", *examples], cwd=DOCS.parent, capture_output=True, text=True)
    assert examples and done.stdout.split() == examples


def test_every_command_about_pods_can_be_rehearsed():
    core = {name: one for name, one in COMMANDS.items() if not one.is_of_pack}
    cannot = {name for name, one in core.items() if "rehearse" not in (flag.spelling for flag in one.flags)}
    without_pods = {
        "shard",
        "tokenizer.train",
        "tokenizer.eval",
        "train",
        "ckpt.init",
        "init",
        "config",
        "docs",
        "doctor",
        "test",
        "check",
    }
    of_none = {name for name in COMMANDS if name.startswith("pool.")}
    assert cannot == {"rehearse"} | without_pods | of_none
    about_a_run = {name: one for name, one in COMMANDS.items() if one.record and issubclass(one.record, OneRunFlags)}
    assert [name for name, one in about_a_run.items() if "rehearse" not in (flag.spelling for flag in one.flags)] == []


def test_rehearsal_accepts_every_flag_of_a_launch():
    launch, rehearse = ({one.name: one for one in COMMANDS[name].flags} for name in ("launch", "rehearse"))
    assert launch.keys() - {"rehearse"} <= rehearse.keys()
    assert all(launch[name] == rehearse[name] for name in launch.keys() & rehearse.keys())


@pytest.mark.parametrize("name", sorted(name for name, one in COMMANDS.items() if one.record))
def test_flag_has_one_meaning_in_a_command(name):
    """The first part silently wins when two parts of a record declare a field."""
    parts = [(one, set(one.__dict__.get("__annotations__", ()))) for one in COMMANDS[name].record.__mro__]
    twice = [
        (one.__name__, other.__name__, own & others)
        for (one, own), (other, others) in combinations(parts, 2)
        if own & others and not issubclass(one, other)
    ]
    assert twice == []


def spec_of(*line):
    """Return the record that a command gets from a line."""
    ((name, *_), (one,)) = line, CommandParser(list(line), tasks.namespace).read()
    values = COMMANDS[name].values(one.as_kwargs)
    record = COMMANDS[name].record
    return record(**{key: value for key, value in values.items() if key in record.__dataclass_fields__})


def test_flags_of_the_source_documents_equal_our_flags():
    by_theirs = spec_of("launch", "--accelerators", "H100:8", "-y", "-n", "bert-qa")
    assert by_theirs == spec_of("launch", "--gpu", "H100:8", "--yes", "--run-name", "bert-qa")
    assert spec_of("train", "--config", "configs/runpod_2b.yaml").config == "configs/runpod_2b.yaml"


def test_launch_without_flags_is_sft_and_watch_has_intervals():
    assert spec_of("launch").phase == "sft"
    assert watch_seconds(spec_of("status", "--watch").watch, 0.0) == 0.0  # No interval is typed.
    assert watch_seconds(spec_of("status", "--watch", "30").watch, 0.0) == 30
    (about,) = (one.about for one in COMMANDS["status"].flags if one.spelling == "watch")
    assert re.findall(r"\d+", about) == [f"{one:g}" for one in (HERE_S, ELSEWHERE_S, VENDOR_S)]
    (about,) = (one.about for one in COMMANDS["launch"].flags if one.spelling == "profile")
    assert "start with the smallest, runpod_1b, then 2b and 4b" in about
