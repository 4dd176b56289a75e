"""Variables of the sources' job files, typed without a file: accepted, or refused with the equivalent command."""

import pytest

from flows.specs import variables
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from tests.world import World


def test_model_and_stage_select_a_profile_and_a_phase():
    spec = variables.applied(LaunchSpec(), {"MODEL": "qwen3_4b", "STAGE": "2", "INIT": "hf://a/b"})
    assert (spec.profile, spec.phase, spec.init) == ("qwen3_4b", "2", "hf://a/b")
    assert variables.applied(LaunchSpec(), {"MODEL": "examples/jobs/profiles/toy.yaml"}).init == ""


@pytest.mark.parametrize("model", ["1bitLLM/bitnet_b1_58-large", "hf://1bitLLM/bitnet_b1_58-large"])
def test_a_hub_path_is_the_initial_model(model):
    spec = variables.applied(LaunchSpec(), {"MODEL": model})
    assert (spec.profile, spec.init) == ("", "hf://1bitLLM/bitnet_b1_58-large")


@pytest.mark.parametrize(
    ("given", "typed", "said"),
    [
        ({"HAAR_ENABLED": "true"}, (), "./inv launch examples/jobs/ablation_haar.yaml -e HAAR_ENABLED=true"),
        ({"SALIENCY_ENABLED": "true"}, (), "examples/jobs/ablation_saliency.yaml -e SALIENCY_ENABLED=true"),
        ({"EXPERIMENT": "haar"}, (), "ablation_haar.yaml has that variable"),
        pytest.param(
            {"TOKENS": "5"},
            (),
            "-e TOKENS: only for the phase dlm; to add the phase: --phase sft.dlm",
            marks=pytest.mark.pack("blocks"),
        ),
        ({"STAGE": "2"}, ("phase",), "-e STAGE and --phase mean the same"),
        pytest.param({"STAGE": "7", "TOKENS": "5"}, (), "unknown phase '7'", marks=pytest.mark.pack("blocks")),
        ({"MODEL": "a/b", "INIT": "hf://c/d"}, (), "INIT names a different model"),
    ],
)
def test_a_variable_without_effect_is_refused(given, typed, said):
    with pytest.raises(UsageError, match=said):
        variables.applied(LaunchSpec(typed=frozenset(typed)), given)


@pytest.mark.pack("bits")
@pytest.mark.process
def test_the_plan_without_a_file_is_the_plan_of_the_stage(tmp_path):
    plan = World(tmp_path).json("launch", "-e", "MODEL=smoke_bits", "-e", "STAGE=2", "--provider", "local", "--dry-run")
    assert plan["artifacts"][-1]["name"] == "bits2_checkpoints/smoke_bits"
