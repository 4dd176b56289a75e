"""A foreign model: imported, trained on, and loaded again by the original library."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.config import Input
from data.tokens import tokenizer as tokenizers
from flows.models import init_model
from infra.errors import AuthError, UsageError
from infra.records import Inventory, Request
from infra.settings import Settings
from store.artifacts.artifacts import Store
from tests.hub import COMMIT, FolderRepo, serving
from tests.trainer.conftest import WAIT_S
from tests.trainer.test_plan import ROOT, WANTED, steps
from trainer import import_model, recipes
from trainer.__main__ import main
from trainer.config import CheckpointOptions, ImportSpec
from trainer.errors import Refused
from trainer.model import export
from trainer.plan import resolve
from trainer.profiles import derived_phases


def foreign(kind: str, folder: Path, vocab: int = 400, dtype: torch.dtype = torch.float32, head_dim: int = 8) -> Path:
    """Save a random model with `transformers`."""
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocab,
        hidden_size=4 * head_dim,  # vLLM reads a Qwen2 like this, regardless of head_dim.
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=96,
        tie_word_embeddings=kind != "Llama",
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).save_pretrained(folder)
    return folder


def gpt2_like(path: Path) -> None:
    """Return a byte-level tokenizer without Slipway's chat tokens, like the tokenizers of GPT-2 and its successors."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = ["reads the paths and returns the words"] * 4
    made.train_from_iterator(
        words,
        trainers.BpeTrainer(
            vocab_size=280, initial_alphabet=alphabet, show_progress=False, special_tokens=["<|endoftext|>"]
        ),
    )
    path.write_text(made.to_str())


def configured(world, name: str, making, spec, **more) -> Path:
    file = world.root / f"{name}.json"
    file.write_text(json.dumps({"making": asdict(making), "spec": asdict(spec), **more}))
    return file


@pytest.mark.day_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@pytest.mark.parametrize("has_tokenizer", [True, False], ids=["with-words", "bare"])
def test_foreign_model_is_fine_tuned_and_loads_in_transformers(world, monkeypatch, capfd, kind, has_tokenizer):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = foreign(kind, world.root / "theirs", vocab=288 if has_tokenizer else 400, dtype=torch.bfloat16)
    if has_tokenizer:
        gpt2_like(folder / "tokenizer.json")
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert (spec.has_tokenizer, spec.model) == (has_tokenizer, export.read_config(folder))
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    taken = Store(world.store).path("imported/theirs", "f" * 64)
    before, words = export.read(folder), tokenizers.load(taken)
    rows = before.config.vocab_size
    after = export.read(taken)
    known = words.vocab_size - len(tokenizers.SPECIALS) if has_tokenizer else rows
    assert after.config.vocab_size == (320 if has_tokenizer else 400)  # 280 + 9 ids exceed 288 rows.
    assert torch.equal(after.head[: min(known, rows)], before.head[: min(known, rows)])
    if has_tokenizer:
        mean = before.head[:known].mean(dim=0)
        assert all(torch.allclose(after.head[words.special(name)], mean, atol=1e-3) for name in tokenizers.SPECIALS)
        assert words.decode(words.encode("reads the paths")) == "reads the paths"
    assert json.loads((taken / "config.json").read_text())["torch_dtype"] == "bfloat16"  # Unchanged.

    entry = Input(name="imported/theirs", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(3)
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/theirs")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0
    made = world.store / "chatsft_checkpoints/theirs" / "hf"
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    ids = AutoTokenizer.from_pretrained(made).apply_chat_template(
        [{"role": "user", "content": "Who are you?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        ours = export.read(made)
        assert (theirs(ids).logits - ours(ids)).abs().max() < 1e-4
    assert any(not torch.equal(one, ours.state_dict()[name]) for name, one in after.state_dict().items())
    capfd.readouterr()
    assert main(["chat", "--model", str(made), "--prompt", "Who are you?", "--max-tokens", "8"]) == 0


@pytest.mark.slow
def test_plan_from_a_foreign_model_omits_base(tmp_path):
    folder = foreign("Qwen3", tmp_path / "Tiny-0.6B", vocab=2000)

    def planned(phases, **more):
        init = init_model.resolve_import(str(folder), Settings.load(ROOT))
        wanted = replace(WANTED, phases=phases, init=init, **more)
        return resolve(wanted, Inventory("x"), ROOT, run="r", request=Request(run="r"))

    bare = planned(("sft",), steps=5)
    assert steps(bare) == ["text", "tokenizer", "init", "identity", "questions", "sft"]
    assert any("has no tokenizer" in note for note in bare.notes)
    assert bare.job.steps[1].config["spec"]["vocab_size"] == 1024  # The profile's.
    small = init_model.resolve_import(str(foreign("Qwen3", tmp_path / "Small", vocab=300)), Settings.load(ROOT))
    plan = resolve(
        replace(WANTED, phases=("sft",), init=small), Inventory("x"), ROOT, run="r", request=Request(run="r")
    )
    assert plan.job.steps[1].config["spec"]["vocab_size"] == 300  # No more than the model's number of rows.
    assert any("sft 5 of 12 steps" in note for note in bare.notes)
    assert [one.name for one in bare.artifacts if one.step in ("init", "sft")] == [
        "imported/Tiny-0.6B",
        "chatsft_checkpoints/Tiny-0.6B",
    ]
    gpt2_like(folder / "tokenizer.json")
    whole = planned(("mid", "sft"))
    assert steps(whole) == ["text", "init", "identity", "questions", "mid", "sft"]
    made = {step.name: step.config["making"]["inputs"] for step in whole.job.steps}
    assert made["mid"]["init"] == made["mid"]["tokenizer"] == made["sft"]["tokenizer"]
    assert set(made["sft"]) == {"tokenizer", "identity", "questions", "mid"}
    first = made["mid"]["init"]["fingerprint"]
    (folder / "model.safetensors").touch()  # The weights may differ.
    again = planned(("mid", "sft")).job.steps
    assert next(one for one in again if one.name == "mid").config["making"]["inputs"]["init"]["fingerprint"] != first
    with pytest.raises(UsageError, match="base starts from random weights"):
        planned(("base", "sft"))


def test_mistyped_model_to_start_from_is_answered_with_similar_models_of_the_store(tmp_path):
    settings = replace(Settings.load(ROOT), store=str(tmp_path / "store"))
    with pytest.raises(UsageError, match="--init mymodle: mymodle is no folder; give a folder, hf://user/repo or imp"):
        init_model.resolve_import("mymodle", settings)
    (made := tmp_path / "made").mkdir()
    (made / "a").touch()
    Store(settings.store).publish(made, "imported/mymodel", "a" * 64, {})
    Store(settings.store).publish(made, "chatsft_checkpoints/mymodel", "b" * 64, {})
    with pytest.raises(UsageError) as refused:
        init_model.resolve_import("mymodle", settings)
    near = {"imported/mymodel", f"{settings.store}/chatsft_checkpoints/mymodel"}
    assert (
        set(
            str(refused.value)
            .partition("--init mymodle: mymodle is no folder; did you mean --init ")[2][:-1]
            .split(" or ")
        )
        == near
    )


@pytest.mark.slow
def test_unsupported_model_is_refused_before_planning(tmp_path):
    settings = Settings.load(ROOT)
    with pytest.raises(UsageError, match="no config.json"):
        init_model.resolve_import(str(tmp_path), settings)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UsageError, match="no .safetensors"):
        init_model.resolve_import(str(tmp_path), settings)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UsageError, match="model_type is 'gpt2'"):
        init_model.resolve_import(str(tmp_path), settings)
    with pytest.raises(UsageError, match="expected hf://user/repo"):
        init_model.resolve_import("hf://repo", settings)
    with pytest.raises(UsageError, match="has 264 ids and no tokenizer;"):
        init = init_model.resolve_import(str(foreign("Llama", tmp_path / "small", vocab=264)), settings)
        resolve(replace(WANTED, init=init), Inventory("x"), ROOT, run="r", request=Request(run="r"))


@pytest.mark.slow
def test_model_with_non_finite_weights_is_refused(world, monkeypatch, capfd):
    from safetensors.torch import load_file, save_file

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = foreign("Llama", world.root / "theirs")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 2
    assert "model.norm.weight have values that are not finite" in capfd.readouterr().err


@pytest.mark.process
def test_tokenizer_without_byte_tokens_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    path.write_text(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    with pytest.raises(Refused, match="its model is 'WordLevel'; supported tokenizers: byte-level"):
        import_model.with_chat_tokens(path, tmp_path / "out")
    spec = ImportSpec(source=str(tmp_path / "gone"), model=recipes.tiny().phases["sft"].model, has_tokenizer=False)
    with pytest.raises(Refused, match="does not exist on this machine"):
        import_model.fetch(spec)


@pytest.mark.process
def test_hub_model_is_pinned_to_its_commit_and_fetched_by_the_step(world, monkeypatch):
    folder = foreign("Llama", world.root / "theirs")
    gpt2_like(folder / "tokenizer.json")
    (folder / "pytorch_model.bin").write_bytes(b"not wanted")
    with serving({"them/tiny": FolderRepo(folder, token="secret")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = Settings.load(ROOT, environ={**os.environ, "HF_TOKEN": "secret"})
        spec = init_model.resolve_import("hf://them/tiny", settings)
        assert (spec.source, spec.revision, spec.has_tokenizer) == ("hf://them/tiny", COMMIT, True)
        assert spec.model == export.read_config(folder)
        with pytest.raises(AuthError, match="set HF_TOKEN"):
            init_model.resolve_import("hf://them/tiny", Settings.load(ROOT, environ={}))
        with pytest.raises(UsageError, match="no such model or revision"):
            init_model.resolve_import("hf://them/tiny@v9", settings)
        making = replace(world.making("imported"), name="imported/tiny")
        file = configured(world, "import", making, spec)
        environ = {**os.environ, "SLIPWAY_WORK": str(world.work()), "HF_HOME": str(world.root / "hf")}
        words = [sys.executable, "-m", "trainer", "import", "--config", str(file)]
        known = {**environ, "HF_TOKEN": "secret"}
        done = subprocess.run(words, env=known, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        assert not any(one.path.endswith(".bin") for one in hub.asked)
    taken = Store(world.store).path("imported/tiny", "f" * 64)
    ours, theirs = export.read(taken), export.read(folder)
    assert torch.equal(ours.head[:280], theirs.head[:280])
