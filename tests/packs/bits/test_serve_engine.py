"""The default engine of a model when the user names none, and engines that cannot run the model."""

import json
from dataclasses import replace

import pytest

from flows.services.serve import with_capable_engine
from infra import strict_yaml
from infra.errors import UsageError
from serve import revision
from store import packs
from trainer.model.huggingface import config_json
from trainer.recipes import PROFILES
from trainer.records.model_config import BlocksConfig, Ternary

BITS = PROFILES["smoke_bits"]().phases["bits2"].model
SMOKE = PROFILES["smoke"]().phases["base"].model
IN_BLOCKS = [replace(one, blocks=BlocksConfig(mask_id=5)) for one in (BITS, SMOKE) if "blocks" in packs.installed()]


@pytest.fixture
def version(tmp_path):
    def make(config, engine=""):
        (tmp_path / "config.json").write_text(json.dumps(config_json(config, "float32", 0, [0])))
        document = strict_yaml.read(revision.CONFIG)
        return revision.first_version(document, str(tmp_path), "local", engine, "store", None, "demo")

    return make


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        (BITS, "llama.cpp"),
        (replace(BITS, ternary=Ternary(per_row=True)), "llama.cpp"),
        (replace(BITS, ternary=Ternary(haar=True)), "torch"),
        (replace(BITS, intermediate_size=704), "torch"),
        *((one, "torch") for one in IN_BLOCKS),
    ],
)
def test_model_gets_an_engine_that_supports_it(version, config, engine):
    told = []
    assert with_capable_engine(version(config), False, told.append).engine == engine
    assert bool(told) == (engine == "torch" and config.blocks is None)
    for other in ("vllm", "vllm-cpu"):
        with pytest.raises(UsageError, match=f"--engine {other}: .*--engine torch"):
            version(config, other)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(BITS, intermediate_size=704), r"intermediate_size 704 \(nearest: 768\); --engine torch"),
        (replace(BITS, ternary=Ternary(haar=True)), "Haar bands.*--engine torch"),
        (replace(BITS, qk_norm=True), "without norms on queries and keys.*--engine torch"),
        (replace(SMOKE, logit_softcap=30.0), "capped logits.*--engine vllm"),
    ],
)
def test_shape_unknown_to_llama_cpp_is_refused_before_a_replica_starts(version, config, said):
    with pytest.raises(UsageError, match=said):
        with_capable_engine(version(config, "llama.cpp"), True, print)
    assert with_capable_engine(version(config, "torch"), True, print).engine == "torch"


@pytest.mark.pack("blocks")
def test_block_decoding_model_is_refused_by_llama_cpp(version):
    with pytest.raises(UsageError, match="decodes in blocks, which only --engine torch supports"):
        version(replace(BITS, blocks=BlocksConfig(mask_id=5)), "llama.cpp")


def test_foreign_tokenizer_has_no_gguf_form(version, tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert with_capable_engine(version(BITS), False, print).engine == "torch"
    with pytest.raises(UsageError, match="the GGUF export writes Slipway's own tokenizers only.*; --engine torch"):
        with_capable_engine(version(BITS, "llama.cpp"), True, print)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|assistant_end|>")
    assert with_capable_engine(version(BITS), False, print).engine == "llama.cpp"
