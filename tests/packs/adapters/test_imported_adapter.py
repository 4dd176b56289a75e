"""Adapters of other trainings as a start: the plan, the refusals before the plan, the import, and the training."""

import json
import os
import shutil
import struct
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from data.config import ConfigError, Input, Persona
from flows.planning.training_plan import refuse_local_inputs
from flows.specs.work import phase_changes
from infra.agent.job import Step
from infra.errors import UsageError
from infra.settings import Settings
from packs.adapters.control.flags import AdapterFlags
from packs.adapters.control.imported_adapter import _of_hub, check_origin, read, resolve
from packs.adapters.records.lora_config import AdapterPhaseConfig, with_adapter
from packs.adapters.records.peft_format import is_finite
from packs.adapters.trainer.imported_adapter import WANTED
from store.artifacts.artifacts import Store
from tests.hub import FolderRepo, serving
from tests.packs.adapters.test_lora import BASE, adapted, renamed, rewrite, with_tensors
from tests.packs.adapters.test_lora import stored as stored
from tests.trainer.conftest import TINY, tiny
from tests.trainer.model.test_init import configured
from tests.trainer.test_phases import chat_phase, run
from tests.trainer.test_rl import config_of
from tests.world import ROOT
from trainer import tensor_file
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import open_final
from trainer.config import ImportSpec, load_phase
from trainer.model import changes
from trainer.plan import TrainingRequest, recipe
from trainer.records.phase_registry import CHANGE, starts_from

WHO = Persona(name="Bosun", maker="a crew", purpose="to answer")
INIT = ImportSpec(source="/models/one", model=TINY, has_tokenizer=True)


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    monkeypatch.setenv("SLIPWAY_STORE", str(tmp_path / "store"))
    return Settings.load(ROOT)


def described(folder: Path, settings: Settings, init: ImportSpec | None = None) -> AdapterFlags:
    return resolve(AdapterFlags(adapter_from=str(folder)), settings, init)


@pytest.mark.parametrize("init", [None, INIT], ids=["own", "init"])
def test_plan_imports_the_adapter_and_only_the_first_phase_starts_from_it(stored, settings, init):
    wanted = TrainingRequest(
        phases=("mid", "sft"),
        profile="tiny",
        persona=WHO,
        init=init,
        changes=phase_changes([AdapterFlags(adapter_from=str(stored))], settings, init),
    )
    if init is None:  # the profile has another shape than the model of the adapter
        with pytest.raises(ConfigError, match="the adapter belongs to another model"):
            recipe(wanted)
        return
    nodes = recipe(wanted)
    assert list(nodes)[list(nodes).index(CHANGE) + 1] == "mid"
    start, mid, sft = (nodes[name] for name in (CHANGE, "mid", "sft"))
    assert start.artifact == "adapter_checkpoints/hf" and start.inputs == {"tokenizer": "init", "init": "init"}
    assert start.words == ("-m", "trainer", "import") and "packs/adapters" in start.code
    assert CHANGE in mid.inputs and CHANGE not in sft.inputs and {"mid", "init"} <= sft.inputs.keys()
    assert starts_from("mid", mid.inputs) == CHANGE and starts_from("sft", sft.inputs) == "mid"
    assert (mid.spec.adapter.rank, mid.spec.adapter.alpha, mid.spec.sequence_len) == (4, 8.0, sft.spec.sequence_len)
    assert load_phase(json.loads(json.dumps(asdict(mid.spec))), "spec") == mid.spec
    with pytest.raises(ConfigError, match="adapter has rank 4.* options say rank 2.*leave the options"):
        recipe(replace(wanted, options={"sft.adapter.rank": "2"}))
    other = replace(INIT, model=replace(TINY, num_hidden_layers=3))
    with pytest.raises(ConfigError, match="adapter changes 2 blocks, and the model has 3"):
        recipe(replace(wanted, init=other, changes=phase_changes([described(stored, settings)], settings)))


@pytest.mark.parametrize("kind", ["", "lora", "qlora"])
def test_both_flags_together_change_a_phase_once(stored, settings, kind):
    """The rate of rl is ten times the rate for an imported model."""
    flags = AdapterFlags(adapter=kind, adapter_from=str(stored))
    wanted = TrainingRequest(
        phases=("rl",), profile="tiny", persona=WHO, init=INIT, changes=phase_changes([flags], settings, INIT)
    )
    config = recipe(wanted)["rl"].spec
    assert (config.optimizer.lr, config.adapter.kind, config.adapter.rank) == (3e-5, kind or "lora", 4)


def test_adapter_flag_takes_the_shape_of_the_imported_model_and_not_of_the_profile():
    """The rank of an adapter of a large model may be above every matrix of the profile."""
    model = replace(TINY, hidden_size=512, num_attention_heads=4, num_key_value_heads=4, head_dim=128, vocab_size=600)
    wanted = TrainingRequest(
        phases=("sft",),
        profile="tiny",
        persona=WHO,
        init=replace(INIT, model=replace(model, intermediate_size=512)),
        changes=phase_changes([AdapterFlags(adapter="lora")]),
        options={"sft.adapter.rank": "400"},
    )
    assert recipe(wanted)["sft"].spec.adapter.rank == 400


def huge(folder: Path) -> None:
    """Write a header that promises more bytes than the file has."""
    path = folder / "adapter_model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + path.read_bytes()[8:])


def infinite(folder: Path) -> None:
    def change(found):
        next(iter(found.values())).view(-1)[5] = float("inf")
        return found

    with_tensors(folder, change)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "not a whole adapter: adapter_model.safetens"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "not a whole adapter: adapter_config.json is miss"),
        (lambda folder: os.truncate(folder / "adapter_model.safetensors", 3000), "is damaged or not a safetensors"),
        (huge, "is damaged or not a safetensors"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json"),
        (lambda folder: rewrite(folder, peft_type="VERA"), "peft_type is 'VERA'; supported: LORA"),
        (lambda folder: rewrite(folder, use_dora=True), "use_dora is True, which is not supported"),
        (lambda folder: rewrite(folder, modules_to_save=["lm_head"]), "modules_to_save is"),
        (lambda folder: rewrite(folder, r=2), "says rank 2"),
        (lambda folder: rewrite(folder, target_modules=["lm_head"]), "lm_head cannot be adapted"),
        (lambda folder: rewrite(folder, target_modules=["q_proj"]), "disagree about the matrices"),
        (renamed("q_proj", "c_attn"), "changes base_model.model.model.layers.0.self_attn.c_attn"),
        (renamed("layers.1", "layers.7"), "of block 1 is missing"),
        (lambda folder: with_tensors(folder, lambda found: {n: t.long() for n, t in found.items()}), "is I64; supp"),
        (infinite, "has numbers that are not finite"),
    ],
)
def test_unusable_adapter_is_refused_before_the_plan(stored, settings, damage, said):
    damage(stored)
    with pytest.raises(UsageError, match=rf"--adapter-from .*hf: (?s:.*){said}"):
        described(stored, settings)


def test_missing_adapter_and_damaged_artifact_are_refused_with_the_next_command(stored, settings, tmp_path):
    with pytest.raises(UsageError, match="neither a folder nor an artifact of .*inv ckpt.list"):
        described(tmp_path / "nowhere", settings)
    draft = tmp_path / "draft"
    shutil.copytree(stored, draft / "hf")
    Store(settings.store).publish(draft, "chatsft_checkpoints/one", "a" * 64, {})
    found = resolve(AdapterFlags(adapter_from="chatsft_checkpoints/one"), settings, None).imported_adapter
    assert (found.source, found.revision) == ("store://chatsft_checkpoints/one", "a" * 64)
    step = Step("change", ("-m", "trainer", "import"), "train", {"spec": asdict(found)})
    refuse_local_inputs((step,), "inv train")
    here = replace(found, source=str(stored))
    with pytest.raises(UsageError, match="is on this machine, but the work runs on a different machine"):
        refuse_local_inputs((replace(step, config={"spec": asdict(here)}),), "inv train")


def test_paths_of_modules_as_peft_writes_them_are_targets(stored, settings):
    own = described(stored, settings).imported_adapter
    paths = [f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in own.adapter.targets]
    rewrite(stored, target_modules=paths)
    assert described(stored, settings).imported_adapter.adapter == own.adapter


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_every_number_that_is_not_finite_is_found(dtype):
    kind = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[dtype]
    good = torch.tensor([0.0, -1.5, torch.finfo(kind).max, -torch.finfo(kind).max, torch.finfo(kind).tiny], dtype=kind)
    assert is_finite(dtype, good.view(torch.uint8).numpy().tobytes())
    for bad in (float("nan"), float("inf"), -float("inf"), -float("nan")):
        odd = good.clone()
        odd[1] = bad
        assert not is_finite(dtype, odd.view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize(
    ("said", "source", "revision", "words"),
    [
        ({"base_model_name_or_path": "them/other"}, "hf://us/one", "", "trained on them/other, and --init is us/one"),
        (
            {"base_model_name_or_path": "us/one", "revision": "b" * 40},
            "hf://us/one",
            "c" * 40,
            "commit bbbbbbbbbbbb of us/one, and --init is commit cccccccccccc",
        ),
        ({"base_model_name_or_path": "Us/One", "revision": "main"}, "hf://us/one", "c" * 40, ""),
        ({"base_model_name_or_path": "/models/x"}, "hf://us/one", "", ""),
        ({"base_model_name_or_path": "them/other"}, "/models/one", "", ""),
    ],
)
def test_adapter_of_another_model_of_the_hub_is_refused(stored, settings, said, source, revision, words):
    rewrite(stored, **said)
    found, commit = read(str(stored), settings.store)
    init = replace(INIT, source=source, revision=revision)
    if not words:
        check_origin(found, commit, init)
        return
    with pytest.raises(ConfigError, match=words):
        check_origin(found, commit, init)


@pytest.mark.parametrize(
    "ours, added, wrong",
    [
        ({"a": 0, "b": 1, "x": 3}, {"<s>": 2}, ""),
        ({"a": 0, "b": 1}, {}, "'<s>' has id 2, and no id in"),
        ({"a": 0, "b": 2}, {"<s>": 1}, "'b' has id 1, and id 2 in"),
    ],
    ids=["more tokens", "missing", "other id"],
)
def test_adapter_of_another_vocabulary_is_refused(stored, settings, tmp_path, ours, added, wrong):
    (tmp_path / "model").mkdir()
    for folder, words, more in ((stored, {"a": 0, "b": 1}, {"<s>": 2}), (tmp_path / "model", ours, added)):
        tokens = [{"content": token, "id": number} for token, number in more.items()]
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}, "added_tokens": tokens}))
    init = replace(INIT, source=str(tmp_path / "model"))
    if not wrong:
        assert described(stored, settings, init).imported_adapter
        return
    with pytest.raises(UsageError, match=f"another vocabulary: {wrong}"):
        described(stored, settings, init)


@pytest.mark.process
@pytest.mark.parametrize("is_artifact", [False, True])
def test_adapter_of_the_hub_is_described_without_its_tensors(stored, settings, monkeypatch, tmp_path, is_artifact):
    """The repository has the files at the top, or in `hf/` as an artifact of ours, and the import fetches both."""
    _of_hub.cache_clear()
    folder = stored
    if is_artifact:
        folder = tmp_path / "artifact"
        shutil.copytree(stored, folder / "hf")
    with serving({"us/lora": FolderRepo(folder)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = resolve(AdapterFlags(adapter_from="hf://us/lora"), settings, None).imported_adapter
    names = [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]
    assert {*filter_repo_objects(names, allow_patterns=[*WANTED])} == {*names}
    own = described(stored, settings).imported_adapter
    assert found.source == "hf://us/lora" and len(found.revision) == 40
    assert (found.adapter, found.layers, found.sides) == (own.adapter, own.layers, own.sides)


@pytest.mark.nightly
def test_reference_of_rl_is_the_model_with_the_imported_adapter(stored, settings, world, monkeypatch):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    assert run(world, monkeypatch, "base", tiny(steps=2, dtype="float32")) == 0
    with_tensors(stored, lambda found: {name: 4 * one for name, one in found.items()})
    config = with_adapter(described(stored, settings), config_of("rl", beta=0.1))
    making = replace(world.making("adapter", base=BASE), name="adapter_checkpoints/hf")
    making = replace(making, inputs={"tokenizer": making.inputs["tokenizer"], "base": BASE})
    assert main(["import", "--config", str(configured(world, "c", making, config.imported_adapter))]) == 0
    change = Input(name="adapter_checkpoints/hf", fingerprint="f" * 64)
    making = world.making("rl", base=BASE, change=change)
    assert run(world, monkeypatch, "rl", replace(config, steps=1), making) == 0
    (line,) = (world.store / "rl_checkpoints/tiny/metrics.jsonl").read_text().splitlines()
    assert abs(json.loads(line)["kl"]) < 1e-4


@pytest.mark.nightly
@pytest.mark.slow
def test_training_starts_from_the_imported_adapter(stored, settings, world, monkeypatch, capfd):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    config = adapted("sft", steps=2)
    given = with_adapter(described(stored, settings), chat_phase("sft", steps=2))
    assert isinstance(given, AdapterPhaseConfig) and given.adapter == config.adapter
    still = replace(given, optimizer=replace(given.optimizer, lr=0.0))
    making = replace(world.making("adapter", base=BASE), name="adapter_checkpoints/hf")
    making = replace(making, inputs={"tokenizer": making.inputs["tokenizer"], "base": BASE})
    assert main(["import", "--config", str(configured(world, "c", making, given.imported_adapter))]) == 0
    change = Input(name="adapter_checkpoints/hf", fingerprint="f" * 64)
    assert run(world, monkeypatch, "sft", still, world.making("sft", base=BASE, change=change)) == 0
    learnt = open_final(world.store / "sft_checkpoints/tiny").tensors("model")
    theirs = tensor_file.read(stored / "adapter_model.safetensors")
    assert all(torch.equal(one, theirs[f"base_model.model.{name}"]) for name, one in learnt.items()) and learnt
    about = changes.read_changed(world.store / "sft_checkpoints/tiny/hf")
    assert (about.name, about.fingerprint) == (BASE.name, BASE.fingerprint)

    def refused(why: str, **words: str) -> None:
        capfd.readouterr()
        file = configured(world, "again", replace(making, fingerprint="e" * 64), given.imported_adapter)
        assert main(["import", "--config", str(file)]) == 2
        assert why in capfd.readouterr().err

    other = changes.ChangedModel(name="base_checkpoints/x", fingerprint="y", weights_sha256="0" * 64)
    changes.write_changed(stored, other)
    refused("changes base_checkpoints/x with weights 000000000000")
    (stored / "changed_model.json").unlink()
    words = json.loads((world.store / "tokenizer" / "tokenizer.json").read_text())
    words["added_tokens"] = [{**one, "id": one["id"] + 1} for one in words["added_tokens"]]
    (stored / "tokenizer.json").write_text(json.dumps(words))
    refused("the adapter was trained with another vocabulary")
    (stored / "tokenizer.json").unlink()
    with_tensors(stored, lambda found: {name: 2 * one for name, one in found.items()})
    refused("the adapter has changed since the plan; plan again")
