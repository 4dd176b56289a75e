"""Statements of the pages about GPUs, profiles and limits of support are true in the code."""

import json
import re

import pytest

from data.errors import ConfigError
from flows.models.init_model import import_from_folder
from infra.errors import UsageError
from infra.market import gpus
from infra.selection import preflight
from serve.engine import models
from tests.docs.pages import ACCOUNT, ROOT
from trainer import config, recipes
from trainer.model.huggingface import ARCHITECTURES

GUIDES = ROOT / "docs" / "guides"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def rows(page: str) -> list[list[str]]:
    lines = (GUIDES / page).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_page_of_gpus_lists_every_profile_of_the_core_with_the_parameters():
    listed = {cells[0].strip("`"): cells[1] for cells in rows("gpus.md") if re.fullmatch("`[a-z0-9_]+`", cells[0])}
    assert listed.keys() == {one.__name__ for one in recipes.OURS}
    for name, said in listed.items():
        number = recipes.PROFILES[name]().phases["base"].model.num_params
        shown = f"{number / 1e9:.2f}B" if number > 1e9 else f"{number / 1e6:.1f}M"
        assert said == shown, name


def test_page_of_gpus_names_the_limits_and_the_machine_of_a_recipe():
    text = (GUIDES / "gpus.md").read_text("utf-8")
    least = preflight.LEAST_MICRO_USD // 1_000_000
    assert f"at least {least} and at most {preflight.MOST_USD} USD" in text
    named = {one.__name__: one().machine for one in recipes.OURS if one().machine.gpu}
    assert {name: f"{one.num_gpus} x {one.gpu}" for name, one in named.items()} == {"d20": "8 x B200"}
    assert "the recipe names 8 x B200" in text
    assert not gpus.is_for_training("MI300X") and gpus.is_for_training("RTX4090")


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "fp8"])
def test_quantized_model_is_no_start_of_a_training_but_is_passed_on_to_vllm(tmp_path, method):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": method}}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="supported quantised models"):
        import_from_folder(str(tmp_path))
    assert models.model_folder(tmp_path) == tmp_path


def test_adapter_folder_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(UsageError, match=r"no config\.json"):
        import_from_folder(str(tmp_path))
    with pytest.raises(UsageError, match=r"no config\.json"):
        models.model_folder(tmp_path)


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "phi3", "qwen3_moe"])
def test_other_shapes_are_no_start_of_a_training(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "model_type": kind}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError, match="this decoder is llama or qwen2 or qwen3 or bitnet"):
        import_from_folder(str(tmp_path))
    assert set(ARCHITECTURES) == {"llama", "qwen2", "qwen3", "bitnet"}
    assert config.PARALLEL == ("auto", "ddp", "fsdp", "hybrid")


def test_blocks_of_the_first_page_that_need_an_account_begin_with_a_line_that_says_so():
    text = (ROOT / "README.md").read_text("utf-8")
    heads = re.findall(rf"^```sh {ACCOUNT}\n(.*)$", text, re.MULTILINE)
    assert heads and all(one.startswith("# ") and "account" in one for one in heads)
