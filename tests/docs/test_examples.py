"""The files of examples/ are valid for their readers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from data.chat import imported
from infra import strict_yaml
from infra.runs.keepers import pod_set
from scripts.cli import flag_file
from scripts.project import schemas
from scripts.project.reference import namespace
from serve import service, skyserve_export
from tests.docs.pages import PAGES, ROOT
from tests.world import World
from trainer import recipes

pytestmark = pytest.mark.process

EXAMPLES = ROOT / "examples"


def test_every_example_is_shown_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert not [path.name for path in EXAMPLES.iterdir() if f"examples/{path.name}" not in text]


def test_quotes_of_examples_on_pages_are_exact():
    for name, page in (("sweeps/rates.yaml", "sweeps.md"), ("fleet.yaml", "pods-as-files.md")):
        said = "".join(line for line in (EXAMPLES / name).open() if not line.startswith("#"))
        assert said in (ROOT / "docs" / "guides" / page).read_text()


@pytest.mark.pack("blocks")
def test_profile_of_a_block_decoding_model_is_read():
    phases = recipes.from_file(EXAMPLES / "blocks.yaml").phases
    assert phases["dlm"].blocks and phases["dlm"].model.hidden_size == phases["base"].model.hidden_size == 128


def test_fleet_is_a_set_of_two_pods_with_limits():
    name, pods = pod_set.read_set("fleet", "fleet", strict_yaml.read(EXAMPLES / "fleet.yaml"), "market", ())
    assert (name, [one.name for one in pods]) == ("fleet", ["trainer", "judge"])
    assert all(one.ttl_hours and one.spend_limit for one in pods)


def test_service_is_valid_here_and_for_skypilot():
    read = service.load(EXAMPLES / "service.yaml")
    assert (read.policy.min_replicas, read.policy.most) == (1, 3)
    assert "slipway" not in skyserve_export.to_skyserve(read, "hf://Qwen/Qwen3-0.6B")


def test_the_flags_of_the_launch_are_flags_of_launch():
    flags = [one.spelling for one in namespace()["launch"].flags]
    assert flag_file.read(EXAMPLES / "launch.yaml", flags)["seed"] == ["7"]


@pytest.mark.parametrize(
    ("name", "file", "wrong"),
    [
        ("launch", "launch.yaml", {"phases": {"sft": {"optimzer": {"lr": 1}}}}),
        pytest.param("sweep", "sweeps/rates.yaml", {"runs": [{"seed": 1}]}, marks=pytest.mark.pack("sweeps")),
        ("pod", "fleet.yaml", {"pods": [{"name": "a", "gpus": 8}]}),
        ("service", "service.yaml", {"name": "a"}),
    ],
)
def test_schema_accepts_the_example_and_refuses_the_readers_refusals(name, file, wrong):
    validator = jsonschema.Draft202012Validator(schemas.schema(name))
    validator.check_schema(validator.schema)
    assert not list(validator.iter_errors(strict_yaml.read(EXAMPLES / file)))
    assert list(validator.iter_errors(wrong))


def test_conversations_can_be_trained_on():
    rows = [json.loads(line) for line in (EXAMPLES / "talk.jsonl").read_text().splitlines()]
    assert rows and all(imported.read(row).messages for row in rows)
    assert max(len(row["messages"]) for row in rows) > 2, "one that goes on"


def test_persona_changes_its_artifacts(tmp_path):
    world = World(tmp_path)
    plain = world.json("launch", "--phase", "sft", "--dry-run")
    other = world.json("launch", "--phase", "sft", "--persona", "examples/persona.yaml", "--dry-run")
    assert (plain["state"], other["state"]) == ("planned", "planned")
    assert plain["target"] != other["target"]


@pytest.mark.pack("sweeps")
def test_sweep_has_three_runs(tmp_path):
    world = World(tmp_path)
    planned = world.json("sweep", "examples/sweeps/runs.yaml", "--pods", "2", "--dry-run")
    assert sorted(run["run"] for run in planned["runs"]) == ["runs.seed-1", "runs.seed-2", "runs.short"]
    assert len(planned["lanes"]) == 2
    assert not Path(tmp_path, "pods").exists()


GPT = EXAMPLES / "jobs" / "gpt"


def start_training(folder: Path, *words: str) -> "subprocess.Popen[str]":
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "sdk"), "SLIPWAY_WORK": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=GPT,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.nightly
def test_small_gpt_learns_and_resumes_after_a_kill_with_undisturbed_losses(tmp_path):
    words = ("--steps", "30", "--save-every", "5")
    whole = start_training(tmp_path / "whole", *words).communicate(timeout=300)[0].splitlines()
    losses = [float(one.rpartition(" ")[2]) for one in whole if one.startswith("step")]
    assert len(losses) == 6 and losses[-1] < losses[0] < 5.6  # 5.545: every byte is equally likely.
    with start_training(tmp_path / "parted", *words) as cut:
        assert any(line.startswith("step 15:") for line in cut.stdout)
        cut.kill()
    parted = start_training(tmp_path / "parted", *words).communicate(timeout=300)[0].splitlines()
    begun = int(parted[0].rpartition(" ")[2])
    assert 15 <= begun < 30 and parted[1:] == whole[1 + begun // 5 :]
