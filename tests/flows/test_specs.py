"""Files of flags: options of phases, axes of sweeps; and variables that reach a job."""

import shlex
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest

import tasks
from data.config import ConfigError
from flows.planning.training_plan import PlannedWork
from flows.runs import same_request
from flows.services import serve
from flows.specs import files, work
from flows.specs.launch import LaunchSpec
from flows.specs.work import WorkSpec
from infra import job_environment
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.flags import command_words, flag, flags_of, nondefault_flags
from infra.records import Request
from infra.settings import Settings
from tests.world import ROOT
from trainer.recipes import PROFILES
from trainer.records import phase_options

TINY = PROFILES["tiny"]()


def test_command_that_prepares_the_inputs_of_a_launch_has_only_flags_of_train_and_names_the_phase():
    values = {bool: True, int: 3, str: "x"}
    flags = [one for one in flags_of(LaunchSpec) if not (one.is_many or one.read)]
    spec = LaunchSpec(**{one.name: values[one.kind] for one in flags if one.kind in values} | {"phase": "all"})
    words = shlex.split(work.prepare_command(spec))
    assert words[:5] == ["inv", "train", "--prepare", "--phase", "all"]
    typed = {word.partition("=")[0] for word in words[5:]}
    assert {"--store", "--steps", "--init"} <= typed <= {f"--{one.spelling}" for one in tasks.namespace["train"].flags}
    assert "--track" not in typed
    assert work.prepare_command(LaunchSpec(gpu="H100", spend_limit="9")) == "inv train --prepare --phase sft"


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("sft.optimizer.lr", "1e-3", 0.001),
        ("sft.optimizer.embed_lr", "null", None),
        ("sft.optimizer.betas", "0.8,0.95", (0.8, 0.95)),
        ("sft.schedule.kind", "cosine", "cosine"),
        ("sft.rows", "16", 16),
        ("sft.recompute", "true", True),
        ("sft.mixture.identity", "0.5", 0.5),
        ("sft.mixture.talk.jsonl", "0.5", 0.5),  # a dot belongs to the name of the drawn value
    ],
)
def test_an_option_has_the_type_of_its_field(path, text, value):
    changed = phase_options.with_options(TINY.phases["sft"], {path: text, "mid.rows": "many"})
    found = changed
    for name in path.split(".")[1:]:
        if isinstance(found, dict):
            found = found.get(path.partition("mixture.")[2])
            break
        found = getattr(found, name)
    assert found == value
    assert changed.steps == TINY.phases["sft"].steps and changed.mixture.keys() >= TINY.phases["sft"].mixture.keys()


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("sft.optimzer.lr", "1", "optimzer is not an option; did you mean optimizer?"),
        ("sft.optimizer.lrr", "1", "optimizer.lrr is not an option; did you mean lr?"),
        ("sft.optimizer", "1", "has sub-options; choose from: lr, embed_lr"),
        ("sft.steps.more", "1", "steps has no sub-options"),
        ("sft.rows", "1.5", "expected a whole number"),
        ("sft.rows", "3", "micro_rows 8 does not divide rows 3"),
        ("sft.recompute", "maybe", "expected true or false"),
        ("sft.model.hidden_size", "64", "all phases share the shape"),
        ("sft.schedule.kind", "square", "--set sft.schedule.kind=square: schedule kind is 'square'"),
        ("sft.optimizer.lr", "-1", "--set sft.optimizer.lr=-1: lr is -1.0; it must be at least 0"),
        ("sft.optimizer.betas", "0.9", "expected 2 values, separated by commas"),
        ("sft.mixture", "identity", "expected mixture.NAME=VALUE"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_option(path, text, said):
    with pytest.raises(ConfigError, match=r"^--set sft\.") as refused:
        phase_options.with_options(TINY.phases["sft"], {path: text})
    assert said in str(refused.value)


def test_a_file_gives_options_nested_or_by_path_and_the_command_line_repeats_them():
    nested = {"phases": {"sft": {"optimizer": {"lr": 1e-3}, "rows": 16}}, "sft.steps": 7, "spend_limit": 12.5}
    read = files.read("f", nested, LaunchSpec)
    spec = LaunchSpec(**{**read, "options": work.read_options(read["options"])})
    assert dict(spec.options) == {"sft.optimizer.lr": "0.001", "sft.rows": "16", "sft.steps": "7"}
    words = ["--spend-limit=12.5", *(f"--set={path}={text}" for path, text in spec.options.items())]
    assert sorted(command_words(spec)) == sorted(words)
    assert nondefault_flags(spec)["spend-limit"] == "12.5"
    with pytest.raises(UsageError, match="unknown key 'sed'; did you mean seed"):
        files.read("f", {"sed": 1}, LaunchSpec)


def test_env_gives_a_setting_a_job_variable_or_a_secret_by_name(tmp_path):
    environ = {"HOME": str(tmp_path), "MY_TOKEN": "hidden"}
    words = ("STAGE=2", "MY_TOKEN", "SLIPWAY_TRACK=here")
    found = Settings.load(ROOT, {}, words, environ)
    assert (found.track, found.sources["track"]) == ("here", "-e")
    assert job_environment.plain(found) == {"STAGE": "2"}
    assert job_environment.secrets(found)["MY_TOKEN"] == "hidden"
    assert job_environment.secrets_for(["MY_TOKEN", "GONE"], Settings.load(ROOT, {}, (), environ), environ) == {
        "MY_TOKEN": "hidden"
    }
    plain = Settings.load(ROOT, {}, ("STAGE=2",), environ)
    assert serve.with_environment({"envs": {"A": "1"}}, plain) == {"envs": {"A": "1", "STAGE": "2"}}
    with pytest.raises(UsageError, match="--env MY_TOKEN: the journal stores the variables of a service"):
        serve.with_environment({}, found)


def test_a_working_run_with_a_different_environment_does_not_match():
    env = {"STAGE": "2", "MY_KEY": "hidden"}
    asked = same_request.typed_launch(LaunchSpec(), Request(run="new"), Limits(), vendors=(), env=env)
    assert "STAGE=2" in asked.to_json() and "hidden" not in asked.to_json()
    asked.check(SimpleNamespace(asked=asked.to_json(), run="a-1", vendor="local"))
    with pytest.raises(UsageError, match="--env MY_KEY STAGE=2"):
        asked.check(SimpleNamespace(asked="", run="a-1", vendor="local"))


def test_the_interval_and_number_of_checkpoints_reach_the_plan():
    settings = Settings.load(ROOT, {}, environ={})
    wanted = PlannedWork.from_spec(
        LaunchSpec(save_every=1000, keep=10, ckpt_prefix="checkpoint"), settings
    ).training_request(settings)
    assert wanted.keeping == {"save_every": 1000, "keep": 10, "prefix": "checkpoint"}


# Flags of a launch that change nothing about a run at work; the vendor and the name are compared apart from the rest.
NOT_COMPARED = {"no_accept", "wait", "deploy_only", "no_deploy", "no_sync", "no_setup", "budget", "dry_run"}


def test_each_flag_of_a_launch_is_compared_with_the_run_at_work_or_exempt():
    asked = same_request.typed_launch(LaunchSpec(), Request(run="new"), Limits(), vendors=(), env={})
    flags = {one.name for one in flags_of(LaunchSpec)} - {one.name for one in flags_of(WorkSpec)}
    assert flags - asked.meant.keys() == NOT_COMPARED | {"provider", "run_name"}


@dataclass(frozen=True, kw_only=True)
class WidthFlags(work.PhaseFlags):
    change: ClassVar[str] = "tests.flows.test_specs:widened"
    width: int = flag(0, "width")
    sides: int = flag(0, "sides")


@dataclass(frozen=True, kw_only=True)
class NamedWidthFlags(WidthFlags):
    change: ClassVar[dict[str, str]] = {"width": "tests.flows.test_specs:widened"}


def widened(flags: WidthFlags, config: int) -> int:
    return config + flags.width


@pytest.mark.parametrize(
    ("record", "wanted"), [(WidthFlags, {"--width": 5, "--sides": 5}), (NamedWidthFlags, {"--width": 5})]
)
def test_flags_of_a_pack_share_a_change_or_name_a_change_by_flag(record, wanted):
    found = work.phase_changes([record(width=2, sides=4)])
    assert {name: change(3) for name, change in found.items()} == wanted
    assert len({*found.values()}) == 1  # the plan applies a shared change once
    assert not work.phase_changes([record()])
