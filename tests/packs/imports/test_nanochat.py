"""A checkpoint folder of nanochat: converted without running foreign code, trained on, used in a chat."""

import json
import pickle
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.config import Input, Persona
from data.tokens import tokenizer as tokenizers
from flows.models import init_model
from infra.errors import UsageError
from infra.settings import Settings
from store.artifacts.artifacts import Store
from tests.trainer.conftest import VOCAB
from tests.trainer.conftest import inputs as inputs
from tests.trainer.conftest import one_thread as one_thread
from tests.trainer.conftest import world as world
from tests.trainer.model.test_init import configured
from tests.trainer.test_plan import ROOT
from trainer import recipes
from trainer.__main__ import main
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.plan import TrainingRequest, recipe
from trainer.profiles import derived_phases

THEIRS = {"self_attn.q_proj": "attn.c_q", "self_attn.k_proj": "attn.c_k", "self_attn.v_proj": "attn.c_v",
          "self_attn.o_proj": "attn.c_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}  # fmt: skip


def nanochat_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "_orig_mod.transformer.wte.weight"
    for ours, theirs in THEIRS.items():
        name = name.replace(ours, theirs)
    return "_orig_mod." + name.replace("model.layers.", "transformer.h.")


def saved(base: Path, words: Path):
    """Return a checkpoint folder with the tokenizer at nanochat's path, and the same model computed by transformers."""
    from transformers import NanoChatConfig, NanoChatForCausalLM

    torch.manual_seed(3)
    config = NanoChatConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        final_logit_softcapping=15.0,
    )
    model = NanoChatForCausalLM(config).eval()
    for one in model.parameters():
        torch.nn.init.normal_(one, std=0.3)
    folder = base / "chatsft_checkpoints" / "d2"
    folder.mkdir(parents=True)
    weights = {nanochat_name(name): one for name, one in model.state_dict().items()}
    torch.save(weights, folder / "model_000700.pt")
    torch.save({}, folder / "model_000650.pt")  # An older step.
    sizes = {"sequence_len": 128, "vocab_size": VOCAB, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "n_embd": 32}
    (folder / "meta_000700.json").write_text(json.dumps({"step": 700, "model_config": sizes}))
    (base / "tokenizer").mkdir()
    (base / "tokenizer" / "tokenizer.pkl").write_bytes(pickled(tokenizers.load(words)))
    return folder, model


def pickled(words: tokenizers.Tokenizer) -> bytes:
    """Return a pickled encoding with these words, like an encoding of tiktoken, which is not installed here."""
    from data.tokens.bpe import byte_letters

    letters = byte_letters()
    spelt = {letters(bytes([byte])): byte for byte in range(256)}
    text = words.inner.get_vocab(with_added_tokens=False)
    ranks = {bytes(spelt[one] for one in word): rank for word, rank in text.items()}
    special = {name: len(ranks) + at for at, name in enumerate(tokenizers.SPECIALS)}

    class Encoding:
        def __getstate__(self):
            return {
                "name": "rustbpe",
                "pat_str": tokenizers.PATTERN,
                "mergeable_ranks": ranks,
                "special_tokens": special,
            }

    Encoding.__module__, Encoding.__qualname__ = "tiktoken.core", "Encoding"
    stands_in = types.ModuleType("tiktoken.core")
    stands_in.Encoding = Encoding  # type: ignore[attr-defined]
    sys.modules |= {"tiktoken": types.ModuleType("tiktoken"), "tiktoken.core": stands_in}
    try:
        return pickle.dumps(Encoding())
    finally:
        del sys.modules["tiktoken"], sys.modules["tiktoken.core"]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.slow
def test_nanochat_checkpoint_is_trained_on_and_used_in_a_chat_but_not_exported(world, inputs, monkeypatch, capfd):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder, theirs = saved(world.root / "nanochat", inputs[0] / "tokenizer")
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert (spec.format, spec.file, spec.has_tokenizer) == ("nanochat", "model_000700.pt", True)
    assert spec.model.vocab_size == VOCAB
    who = Persona(name="Ada", maker="us", purpose="to help")
    assert (
        "packs/imports" in recipe(TrainingRequest(phases=("sft",), profile="tiny", persona=who, init=spec))["init"].code
    )
    making = replace(world.making("imported"), name="imported/d2")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    taken = Store(world.store).path("imported/d2", "f" * 64)
    assert tokenizers.load(taken).encode("reads the paths") == tokenizers.load(inputs[0] / "tokenizer").encode(
        "reads the paths"
    )
    ids = torch.randint(0, VOCAB, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (export.read(taken)(ids) - theirs(ids).logits).abs().max() < 1e-4

    entry = Input(name="imported/d2", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(2)
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/d2")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0
    made = world.store / "chatsft_checkpoints/d2"
    assert main(["chat", "--model", str(made), "--prompt", "Who are you?", "--max-tokens", "8"]) == 0
    capfd.readouterr()
    assert main(["export", "--model", str(made), "--out", str(world.root / "out")]) == 2
    said = capfd.readouterr().err
    assert "no class of transformers has this shape (an MLP of relu(x)**2, a norm behind the embedding)" in said


class Evil:
    """A payload that a pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("which", ["weights", "tokenizer"])
def test_pickle_that_would_run_code_is_refused_and_runs_no_code(world, inputs, monkeypatch, capfd, which):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder, _ = saved(world.root / "nanochat", inputs[0] / "tokenizer")
    ran = world.root / "ran"
    if which == "weights":
        torch.save({"lm_head.weight": Evil(ran)}, folder / "model_000700.pt")
    else:
        (folder.parents[1] / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(Evil(ran)))
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    making = replace(world.making("imported"), name="imported/d2")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 2
    assert "cannot be converted: " in capfd.readouterr().err
    assert not ran.exists()


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (None, "nanochat writes this file beside model_000001.pt"),
        ({"model_config": {"n_layer": 2}}, "expected whole numbers for sequence_len"),
        ({"model_config": {"n_layer": 1 << 24}}, "n_layer is 16777216; expected a whole number from 1 to 4096"),
        ({"model_config": {"n_embd": 1 << 19}}, "n_embd is 524288; expected a whole number from 1 to 262144"),
        ({"model_config": {"window_pattern": "SSSX"}}, "expected the letters S and L"),
        ({"model_config": {"bigram_rows": 4}}, "'bigram_rows': this version of nanochat is not supported"),
    ],
)
def test_folder_of_a_different_nanochat_version_is_refused_before_planning(tmp_path, meta, words):
    (tmp_path / "model_000001.pt").touch()
    if meta is not None:
        if meta["model_config"] != {"n_layer": 2}:
            sizes = dict.fromkeys(("sequence_len", "vocab_size", "n_layer", "n_head", "n_embd", "n_kv_head"), 8)
            meta = {"model_config": sizes | meta["model_config"]}
        (tmp_path / "meta_000001.json").write_text(json.dumps(meta))
    with pytest.raises(UsageError, match=words):
        init_model.resolve_import(str(tmp_path), Settings.load(ROOT))
