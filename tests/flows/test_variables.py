"""Variables of the sources' job files, typed without a file: known, or refused with the command that does it."""

import pytest

from flows.jobs import training
from flows.planning.training_plan import init_named
from flows.specs import variables
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.jobs import job_file
from infra.settings import Settings
from tests.world import ROOT, World


def test_model_and_stage_mean_a_profile_and_a_phase():
    spec = variables.applied(LaunchSpec(), {"MODEL": "qwen3_4b", "STAGE": "2", "INIT": "hf://a/b"})
    assert (spec.profile, spec.phase, spec.init) == ("qwen3_4b", "2", "hf://a/b")
    assert variables.applied(LaunchSpec(), {"MODEL": "examples/jobs/profiles/toy.yaml"}).init == ""


@pytest.mark.parametrize("model", ["1bitLLM/bitnet_b1_58-large", "hf://1bitLLM/bitnet_b1_58-large"])
def test_a_path_of_the_hub_is_the_model_to_begin_from(model):
    spec = variables.applied(LaunchSpec(), {"MODEL": model})
    assert (spec.profile, spec.init) == ("", "hf://1bitLLM/bitnet_b1_58-large")


@pytest.mark.parametrize(
    ("given", "typed", "said"),
    [
        ({"HAAR_ENABLED": "true"}, (), "./inv launch examples/jobs/ablation_haar.yaml -e HAAR_ENABLED=true"),
        ({"SALIENCY_ENABLED": "true"}, (), "examples/jobs/ablation_saliency.yaml -e SALIENCY_ENABLED=true"),
        ({"EXPERIMENT": "haar"}, (), "ablation_haar.yaml has that variable"),
        pytest.param(
            {"TOKENS": "5"}, (), "-e TOKENS: for the phase dlm, as in --phase sft.dlm", marks=pytest.mark.pack("blocks")
        ),
        ({"STAGE": "2"}, ("phase",), "-e STAGE and --phase mean the same"),
        pytest.param({"STAGE": "7", "TOKENS": "5"}, (), "unknown phase '7'", marks=pytest.mark.pack("blocks")),
        ({"MODEL": "a/b", "INIT": "hf://c/d"}, (), "INIT names another model"),
    ],
)
def test_what_would_be_ignored_is_refused(given, typed, said):
    with pytest.raises(UsageError, match=said):
        variables.applied(LaunchSpec(typed=frozenset(typed)), given)


def loaded(name, *given, profile=""):
    environ = {"HOME": "/nonexistent", "RUNPOD_API_KEY": "k" * 20}
    file = job_file.load(ROOT / "examples" / "jobs" / f"{name}.yaml")
    return file, Settings.load(ROOT, {"provider": "local", "profile": profile}, given, environ=environ)


def test_a_variable_that_a_job_file_does_not_have_is_refused():
    file, settings = loaded("train", "HAAR_ENABLED=true")
    with pytest.raises(
        UsageError, match="has no such variable .known: MODEL, STAGE, INIT.; .*ablation_haar.yaml has it"
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
def test_a_stage_goes_on_from_the_published_model_of_its_profile(model, init):
    file, settings = loaded("train", f"MODEL={model}", profile=model)
    spec = training.spec_of(file, LaunchSpec(provider="local"), settings, lambda _: None)
    assert init_named(spec, settings) == init


@pytest.mark.pack("bits")
@pytest.mark.process
def test_the_plan_without_a_file_is_that_of_the_stage(tmp_path):
    plan = World(tmp_path).json("launch", "-e", "MODEL=smoke_bits", "-e", "STAGE=2", "--provider", "local", "--dry-run")
    assert plan["artifacts"][-1]["name"] == "bits2_checkpoints/smoke_bits"


@pytest.mark.process
def test_a_plan_names_the_secrets_that_are_set_and_shows_no_value(tmp_path):
    world = World(tmp_path, {"HF_TOKEN": "hf-canary-77", "DB_TOKEN": "db-canary-78"})
    job = tmp_path / "job.yaml"
    job.write_text("envs: {HF_TOKEN: }\nrun: echo\n")
    (tmp_path / "plain.yaml").write_text("run: echo\n")
    names = ("-e", "HF_TOKEN", "-e", "DB_TOKEN")
    for words, said in (
        (("--phase", "base", *names), "HF_TOKEN (set; its value is kept secret), DB_TOKEN (set;"),
        ((str(job),), "secrets: HF_TOKEN (set; values go to the pod by a private file)"),
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
