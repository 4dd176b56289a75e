"""A phase, a profile or a model of a missing pack is refused with the name of the pack."""

import json

import pytest

from data.config import ConfigError
from flows.specs import files, variables
from flows.specs.launch import LaunchSpec
from flows.specs.work import filled
from infra.errors import UsageError
from scripts.models.export import ExportFlags, check_export
from serve import model_kinds
from store import packs
from tests.trainer.conftest import TINY
from trainer.config import load_phase
from trainer.errors import Refused
from trainer.model import changes
from trainer.model.huggingface import config_json, model_config
from trainer.plan.training_request import parse_phases, profile_named
from trainer.records import model_config as shapes
from trainer.records import phase_options

LACKING = "belongs to the pack bits, and packs/bits is missing; to restore the pack: git checkout HEAD -- packs/bits"
PLAIN = config_json(TINY, "float32", 0, [0])
ONE_BIT = {**PLAIN, "model_type": "llama", "architectures": ["BitnetForCausalLM"]}
ROUNDED = {**PLAIN, "model_type": "bitnet", "quantization_config": {"quant_method": "bitnet"}}
IN_BLOCKS = {**PLAIN, "model_type": "block_diffusion", "block_diffusion": {"shape": "llama", "mask_id": 300}}
OURS = {**PLAIN, "model_type": "slipway", "ternary": {"per_row": True}}


@pytest.fixture
def without_packs(monkeypatch, tmp_path):
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "FOLDER", tmp_path / "packs")
    shapes.feature.cache_clear()
    yield tmp_path
    shapes.feature.cache_clear()


@pytest.mark.parametrize("word", ["bits2", "1.9", "base+bits1"])
def test_a_phase_is_refused_in_a_launch_an_option_and_a_step(without_packs, word):
    with pytest.raises(UsageError, match=LACKING):
        parse_phases(word)
    for refused in (
        lambda: phase_options.refuse_unknown({"bits2.steps": "3"}, {"base": None}),
        lambda: load_phase({"phase": "bits2"}, "spec"),
    ):
        with pytest.raises(ConfigError, match=LACKING):
            refused()


def test_a_profile_and_a_form_of_export_are_refused(without_packs):
    with pytest.raises(UsageError, match=f"smoke_bits {LACKING}"):
        profile_named("smoke_bits")
    with pytest.raises(UsageError, match=f"hf {LACKING}"):
        check_export(ExportFlags(bits="hf", out="model"))


def test_block_decoding_model_and_the_sizes_of_its_phase_are_refused(without_packs):
    with pytest.raises(ConfigError, match="blocks belongs to the pack blocks"):
        model_config(IN_BLOCKS)
    (without_packs / "config.json").write_text(json.dumps(IN_BLOCKS))
    with pytest.raises(UsageError, match="belongs to the pack blocks"):
        model_kinds.kind_of(str(without_packs))
    with pytest.raises(UsageError, match="-e TOKENS: tokens belongs to the pack blocks"):
        variables.applied(LaunchSpec(), {"TOKENS": "5"})
    with pytest.raises(UsageError, match="job.yaml: block_size belongs to the pack blocks"):
        files.read("job.yaml", {"block-size": 5}, LaunchSpec)
    assert "belongs to the pack blocks" in packs.missing_pack_message("command_flags", "launch --block-size")
    assert "belongs to the pack blocks" in packs.missing_pack_message("settings", "block_size")
    assert filled(LaunchSpec(), {"block_size": 5, "seed": 7}) == LaunchSpec(seed=7)
    with pytest.raises(UsageError, match="dlm belongs to the pack blocks"):
        parse_phases("sft+dlm")


def test_adapter_is_refused_as_a_flag_a_setting_and_a_stored_change(without_packs):
    lacking = "belongs to the pack adapters, and packs/adapters is missing"
    assert f"launch --adapter {lacking}" in packs.missing_pack_message("command_flags", "launch --adapter")
    with pytest.raises(ConfigError, match=f"spec: adapter {lacking}"):
        load_phase({"phase": "sft", "adapter": {"rank": 4}}, "spec")
    (without_packs / "adapter_config.json").write_text("{}")
    with pytest.raises(Refused, match=f"adapter_config.json {lacking}"):
        changes.change_in(without_packs)


@pytest.mark.parametrize("raw", [ONE_BIT, ROUNDED, OURS], ids=["1bitLLM", "bitnet", "ours"])
def test_model_is_refused_and_not_read_as_a_different_model(without_packs, raw):
    with pytest.raises(ConfigError, match=LACKING):
        model_config(raw)
    if raw is not ONE_BIT:  # transformers' own classes read it.
        (without_packs / "config.json").write_text(json.dumps(raw))
        with pytest.raises(UsageError, match=LACKING):
            model_kinds.kind_of(str(without_packs))


def test_models_of_the_core_are_read_without_packs(without_packs):
    assert model_config(PLAIN) == TINY and TINY.gguf_type == "f16" and not TINY.has_masters
    with pytest.raises(ConfigError, match="quantization_config is .*; supported quantised models: "):
        model_config({**PLAIN, "quantization_config": {"quant_method": "gptq"}})
