"""A job file with a training of Slipway: the recipe on this machine, and refusals with the line number."""

import json
from contextlib import ExitStack

import pytest

from flows.runs import launch
from flows.specs.launch import LaunchSpec
from flows.specs.work import typed_sizes
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from packs.jobs.control import job_file, training
from tests.hub import FolderRepo, serving
from tests.sources.settings_of import with_models
from tests.world import ROOT
from trainer.plan import profile_named, recipe
from trainer.plan.estimates import STATE_BYTES, min_gpu_bytes

pytestmark = pytest.mark.process

JOBS = ROOT / "examples" / "jobs"
FILES = {  # Of the examples, with settings for a small size.
    "train": ("MODEL=examples/jobs/profiles/toy.yaml", "STAGE=1.9"),
    "dlm_train": ("MODEL=tiny", "INIT=", "TOKENS=2048", "BLOCK_SIZE=8", "BATCH_SIZE=2", "GRAD_ACCUM=3"),
    "ablation_haar": ("MODEL=toy", "INIT=", "EXPERIMENT=haar", "HAAR_ENABLED=true"),
    "ablation_saliency": ("MODEL=toy", "INIT=", "EXPERIMENT=saliency", "SALIENCY_ENABLED=true"),
}


def settings(tmp_path, provider, *given, **flags):
    mine = {"SLIPWAY_STATE_FILE": "journal.db", "SLIPWAY_PODS": "pods", "SLIPWAY_STORE": "store"}
    environ = {name: str(tmp_path / path) for name, path in mine.items()}
    flags = {"provider": provider, **flags}
    return Settings.load(ROOT, flags, given, environ={**environ, "HOME": str(tmp_path), "RUNPOD_API_KEY": "k"})


def spec_and_notes(tmp_path, name, provider, *given, **typed):
    told = []
    file = job_file.load(JOBS / f"{name}.yaml")
    found = settings(tmp_path, provider, *given)
    spec = training.spec_of(file, LaunchSpec(provider=provider, **typed), found, told.append)
    return spec, " ".join(told)


def pack_of(name):
    """Return the pack of the phases of an example."""
    return "blocks" if name == "dlm_train" else "bits"


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.pack(pack_of(one))) for one in FILES])
def test_every_example_training_can_run_here_and_in_the_cloud(tmp_path, name):
    spec, told = spec_and_notes(tmp_path, name, "local", *FILES[name])
    assert (spec.gpu, spec.num_gpus, spec.use_spot, spec.disk_size) == ("", 0, False, "")
    assert "no effect on a machine of your own" in told and "gets no GPU" in told
    small = settings(tmp_path, "local", *FILES[name], profile=spec.profile)
    assert launch.resolve(spec, small).work.training_request(small).phases
    assert (
        training.variables(job_file.load(JOBS / f"{name}.yaml"), small).items()
        >= dict(one.split("=") for one in FILES[name]).items()
    )
    spec, _ = spec_and_notes(tmp_path, name, "runpod")
    assert spec.gpu and spec.num_gpus and spec.use_spot
    large = settings(tmp_path, "runpod", profile=spec.profile)
    assert (
        launch.PlannedWork.from_spec(LaunchSpec(phase=spec.phase, options=spec.options), large)
        .training_request(large)
        .phases
    )


@pytest.mark.parametrize(
    ("name", "variable", "model", "steps", "disk"),
    [
        ("ablation_haar", "HAAR_ENABLED", "smollm2_135m", (2000, 1000), ""),
        ("ablation_saliency", "SALIENCY_ENABLED", "qwen3_4b", (500, 1000), "100"),
    ],
)
def test_ablation_job_files_have_the_numbers_of_their_source(tmp_path, name, variable, model, steps, disk):
    for is_on in ("true", "false"):
        spec, _ = spec_and_notes(tmp_path, name, "runpod", f"{variable}={is_on}")
        assert (spec.phase, spec.gpu, spec.num_gpus, spec.disk_size) == ("1+1.9+2", "A100-80GB", 1, disk)
        recipe = profile_named(spec.profile)
        assert recipe.name.startswith(model)
        assert tuple(recipe.phases[one].steps for one in ("bits1.9", "bits2")) == steps
    assert job_file.load(JOBS / f"{name}.yaml").tasks[0].envs["WANDB_PROJECT"] == "wrinklefree-ablation"


@pytest.mark.pack("blocks")
def test_typed_flags_override_the_file_and_its_variables(tmp_path):
    spec, _ = spec_and_notes(tmp_path, "train", "runpod", "STAGE=3", "ACCELERATOR=A100:8")
    assert (spec.phase, spec.profile, spec.gpu, spec.num_gpus) == ("3", "qwen3_4b", "A100", 8)
    spec, _ = spec_and_notes(
        tmp_path,
        "dlm_train",
        "runpod",
        "TOKENS=7",
        "GRAD_ACCUM=2",
        profile="tiny",
        gpu="H200:2",
        options={"sft.steps": "3"},
    )
    assert (spec.profile, spec.gpu, spec.num_gpus) == ("tiny", "H200", 2)
    assert typed_sizes(spec) == {"tokens": 7, "block_size": 32, "batch_size": 4, "grad_accum": 2}
    assert spec.options["sft.steps"] == "3"


def test_typed_default_value_overrides_the_file(tmp_path):
    spec, _ = spec_and_notes(tmp_path, "train", "runpod", phase="sft", typed=frozenset({"phase"}))
    assert (spec.phase, spec.profile) == ("sft", "qwen3_4b")


def test_requested_network_is_passed_to_skypilot(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("resources: {accelerators: H100:8, network_tier: best}\nslipway: {train: {phase: base}}")
    spec = training.spec_of(job_file.load(path), LaunchSpec(), settings(tmp_path, "skypilot"), print)
    assert (spec.gpu, spec.num_gpus, spec.network) == ("H100", 8, "best")


BAD = {
    "slipway: {train: {phase: $STAGE}}": r"line 1: slipway.train.phase is '\$STAGE'; "
    r"\$NAME stands for a variable of `envs`",
    "envs: {A: 1}\nslipway: {train: {phase: 'costs $'}}": r"\(here: A\), and \$\$ for a dollar",
    "slipway: {train: {phas: base}}": "line 1: slipway.train: unknown key 'phas'; did you mean phase",
    "slipway: {train: {gpu: H100}}": "unknown key 'gpu'",
    "slipway: {train: {steps: many}}": "steps is 'many'; it must be a whole number",
    "slipway: {train: {phase: base}}\nrun: x": "line 2: run: slipway.train describes a training of Slipway",
    "slipway: {train: {phase: base}}\n---\nrun: x": "a training is one task; write the phases as a sum",
    "envs: {NEEDED: }\nslipway: {train: {phase: base}}": "line 1: envs: NEEDED has no value",
}


@pytest.mark.parametrize("text", BAD)
def test_invalid_value_is_refused_with_the_place(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=BAD[text]):
        training.spec_of(job_file.load(path), LaunchSpec(), settings(tmp_path, "local"), print)


def test_stage_2_continues_the_published_model_on_a_disk_that_fits(tmp_path, monkeypatch):
    """The machine of the file has the disk for its own stages, not for all stages."""
    (tmp_path / "theirs").mkdir()
    shape = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(shape))
    (tmp_path / "theirs" / "model.safetensors").touch()
    with serving({"Qwen/Qwen3-4B": FolderRepo(tmp_path / "theirs")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        disks = {}
        for stages in ("2", "1+1.9+2+3"):
            spec, _ = spec_and_notes(tmp_path, "train", "runpod", f"STAGE={stages}")
            found = settings(tmp_path, "local", f"STAGE={stages}", profile=spec.profile)
            work, request = launch.PlannedWork.from_spec(spec, found), Request(run="r", num_gpus=4)
            assert work.init is not None and work.init.source == "hf://Qwen/Qwen3-4B"
            plan = work.plan(found, request, registry.provider(found, "local"), Limits())
            disks[stages] = plan.request.work_disk_bytes
            params = work.init.model.num_params
    assert spec.disk_size == ""
    kept = 6  # Five checkpoints, and the one being written.
    state_bytes = kept * STATE_BYTES * params
    assert state_bytes < disks["2"] < 4 * state_bytes < disks["1+1.9+2+3"], disks


@pytest.mark.pack("blocks")
def test_training_starts_from_a_model_of_the_hub(tmp_path):
    spec, _ = spec_and_notes(tmp_path, "dlm_train", "runpod", "MODEL=1bitLLM/bitnet_b1_58-large", "TOKENS=7")
    assert (spec.init, spec.profile) == ("hf://1bitLLM/bitnet_b1_58-large", "qwen3_0_6b")
    assert typed_sizes(spec)["tokens"] == 7
    spec, _ = spec_and_notes(tmp_path, "train", "runpod", "MODEL=hf://a/b@v1", "STAGE=2")
    assert (spec.init, spec.profile) == ("hf://a/b@v1", "qwen3_4b")
    with pytest.raises(UsageError, match="is on the hub, and INIT names another model"):
        spec_and_notes(tmp_path, "train", "runpod", "MODEL=a/b", "INIT=hf://c/d")


def test_saliency_ablation_fits_the_gpu_of_its_job_file(tmp_path, monkeypatch):
    with ExitStack() as stack:
        for name, value in with_models(tmp_path, stack).items():
            monkeypatch.setenv(name, value)
        spec, _ = spec_and_notes(tmp_path, "ablation_saliency", "runpod")
        found = settings(tmp_path, "local", profile=spec.profile)
        nodes = recipe(launch.PlannedWork.from_spec(spec, found).training_request(found))
    for name in ("bits1", "bits1.9", "bits2"):
        assert min_gpu_bytes(nodes[name].spec, 1) <= 80 * 10**9, name
