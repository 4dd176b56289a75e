"""The variables of a job file: known, or refused with the file that defines them; secrets are named, not shown."""

import re

import pytest

from flows.planning.training_plan import init_named
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.settings import Settings
from packs.jobs.control import job_file, training
from tests.world import ROOT, World


def load_job(name, *given, profile=""):
    environ = {"HOME": "/nonexistent", "RUNPOD_API_KEY": "k" * 20}
    file = job_file.load(ROOT / "examples" / "jobs" / f"{name}.yaml")
    return file, Settings.load(ROOT, {"provider": "local", "profile": profile}, given, environ=environ)


def test_unknown_variable_of_a_job_file_is_refused():
    file, settings = load_job("train", "HAAR_ENABLED=true")
    with pytest.raises(
        UsageError, match="has no such variable .known: MODEL, STAGE, INIT.; .*ablation_haar.yaml has this variable"
    ):
        training.variables(file, settings)


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "init"),
    [
        ("qwen3_4b", "hf://Qwen/Qwen3-4B"),
        ("smollm2_135m", "hf://HuggingFaceTB/SmolLM2-135M"),
        ("examples/jobs/profiles/toy.yaml", ""),
    ],
)
def test_stage_continues_the_published_model_of_its_profile(model, init):
    file, settings = load_job("train", f"MODEL={model}", profile=model)
    spec = training.spec_of(file, LaunchSpec(provider="local"), settings, lambda _: None)
    assert init_named(spec, settings) == init


@pytest.mark.process
def test_plan_names_the_secrets_that_are_set_and_shows_no_value(tmp_path):
    world = World(tmp_path, {"HF_TOKEN": "hf-canary-77", "DB_TOKEN": "db-canary-78"})
    job = tmp_path / "job.yaml"
    job.write_text("envs: {HF_TOKEN: }\nrun: echo\n")
    (tmp_path / "plain.yaml").write_text("run: echo\n")
    names = ("-e", "HF_TOKEN", "-e", "DB_TOKEN")
    for words, said in (
        (("--phase", "base", *names), "HF_TOKEN (set; its value is kept secret), DB_TOKEN (set;"),
        ((str(job),), "secrets: HF_TOKEN (set; values go to the pod in a private file)"),
        ((str(tmp_path / "plain.yaml"), *names), "secrets: DB_TOKEN, HF_TOKEN (set;"),
    ):
        plan = world.json("launch", *words, "--provider", "local", "--dry-run")
        assert [one for one in plan["notes"] if said in one], plan["notes"]
        assert "canary" not in str(plan)
    unset = World(tmp_path, {"RUNPOD_API_KEY": "rpa-canary-0123456789"})
    assert "not set in the shell" in unset.json("launch", "-e", "GONE_KEY", "--dry-run", code=2)["error"]
    plan = unset.json(
        "launch", str(tmp_path / "plain.yaml"), "-e", "RUNPOD_API_KEY", "--provider", "local", "--dry-run"
    )
    assert not [one for one in plan["notes"] if one.startswith("secrets:")], "the key of an account never goes to a pod"


@pytest.mark.process
def test_job_file_shows_its_variables_used_in_its_paths(tmp_path):
    world, file = World(tmp_path), "examples/jobs/dlm_train.yaml"
    rows = world.json("config", "--config", file)
    assert {one["name"]: one["value"] for one in rows if "value" in one} == {
        "envs.MODEL": "qwen3_0_6b",
        "envs.INIT": "hf://Qwen/Qwen3-0.6B",
        "envs.TOKENS": "1000000000",
        "envs.BLOCK_SIZE": "32",
        "envs.BATCH_SIZE": "4",
        "envs.GRAD_ACCUM": "16",
    }
    assert [(one["name"], one["found"]) for one in rows if "path" in one] == [("config", True)]
    shown = world.inv("config", "--config", file)
    assert "envs.TOKENS      value  1000000000\n" in shown and "missing" not in shown and "$INIT" not in shown
    assert "missing" not in world.inv("config", "--config", "examples/jobs/train.yaml"), "`hub` is no folder"
    own = tmp_path / "job.yaml"
    own.write_text(
        f"envs: {{DATA: {tmp_path}/talk.jsonl, KEY: , MY_TOKEN: canary-77}}\n"
        "slipway: {train: {phase: sft, identity: $DATA}}\n"
    )
    shown = world.inv("config", "--config", str(own))
    assert f"slipway.train.identity  missing   {tmp_path}/talk.jsonl" in shown
    assert re.search(r"envs\.KEY +no value", shown) and "canary" not in shown
    own.write_text(
        "envs: {A_KEY: ./canary-78.json, DB: canary-79}\n"
        "secrets: {DB_LOGIN: canary-80, CERT: ./canary-81.json, DB2: }\nrun: x\n"
        "---\nname: b\nenvs: {DB_LOGIN: canary-82}\nrun: y\n"
    )
    rows, shown = world.json("config", "--config", str(own)), world.inv("config", "--config", str(own))
    assert {one["name"]: one["value"] for one in rows if "value" in one} == {
        "envs.A_KEY": "***",
        "envs.DB": "canary-79",
        "envs.DB_LOGIN": "***",
        "envs.CERT": "***",
        "envs.DB2": None,
    }
    assert not re.search(r"canary-(78|80|81|82)", f"{rows} {shown}")
