"""Exports and chats with llama.cpp: models without a GGUF form are refused before any work."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import UsageError
from scripts.models import chat, export
from scripts.models.chat import ChatFlags
from scripts.models.export import ExportFlags
from trainer.model.huggingface import config_json
from trainer.records.model_config import BlocksConfig, ModelConfig, Ternary

BITNET = ModelConfig(vocab_size=320, hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=64, sub_norm=True, ternary=Ternary())  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a function that writes a model config and returns its folder; the store is empty."""
    monkeypatch.setenv("SLIPWAY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("SLIPWAY_ENVIRONMENTS", str(tmp_path / "environments"))

    def write(shape):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(config_json(shape, "float32", 0, [1])))
        return str(tmp_path / "model")

    yield write
    assert not (tmp_path / "environments").exists()


def test_shape_without_a_gguf_type_is_refused_with_the_nearest_fitting_shape(folder):
    model = folder(BITNET)
    said = r"model cannot become a GGUF file of tq2_0: .*intermediate_size 704 .nearest: 768.*; "
    with pytest.raises(UsageError, match=said + "these types fit: --gguf-type q8_0 or f16 or bf16 or f32"):
        export.export.work(ExportFlags(model=model, bits="gguf"))
    with pytest.raises(UsageError, match=said + "leave out --engine llama.cpp"):
        chat.chat.work(ChatFlags(model=model, engine="llama.cpp", prompt="hi"))


@pytest.mark.pack("blocks")
def test_model_without_a_gguf_type_uses_the_default_engine(folder):
    model = folder(replace(BITNET, ternary=None, sub_norm=False, blocks=BlocksConfig(mask_id=300)))
    with pytest.raises(UsageError, match="decodes in blocks, which llama.cpp does not support; leave out --bits gguf"):
        export.export.work(ExportFlags(model=model, bits="gguf", gguf_type="f16"))


def test_foreign_tokenizer_is_refused_with_a_reason(folder):
    model = folder(replace(BITNET, intermediate_size=768))
    Path(model, "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(
        UsageError,
        match="GGUF file of tq2_0: the GGUF export writes Slipway's own tokenizers only.*leave out --bits gguf",
    ):
        export.export.work(ExportFlags(model=model, bits="gguf"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"bits": "ggml"}, "--bits is 'ggml'; known: gguf, hf"),
        ({"bits": "gguf", "gguf_type": "q4"}, "--gguf-type is 'q4'; known: tq2_0"),
        (
            {"bits": "gguf", "dtype": "bfloat16"},
            "--dtype applies to folders only; for a GGUF file use --gguf-type bf16",
        ),
        ({"bits": "gguf", "typed": frozenset({"dtype"})}, "--dtype applies to folders only"),
        ({"gguf_type": "f16", "out": "x"}, "--gguf-type f16 needs --bits gguf"),
        ({"out": "x", "typed": frozenset({"gguf_type"})}, "--gguf-type tq2_0 needs --bits gguf"),
        ({"bits": "hf"}, "--out is missing"),
    ],
)
def test_conflicting_flags_are_refused(flags, said):
    with pytest.raises(UsageError, match=said):
        export.export.work(ExportFlags(**flags))
