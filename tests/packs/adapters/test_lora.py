"""Adapters: only adapters learn, in training from a base model to a chat; artifacts, faults, and the memory."""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.config import ConfigError, Input, Persona
from flows.specs.work import phase_changes
from infra.errors import UsageError
from packs.adapters.control.flags import AdapterFlags
from packs.adapters.records.lora_config import MATRICES, AdapterConfig, AdapterPhaseConfig, sides, with_adapter
from packs.adapters.trainer.lora import AdaptedLinear, Lora, write_config
from store.artifacts.artifacts import Store
from tests.trainer.conftest import TINY, finish, tiny
from tests.trainer.model.test_model import IDS, LLAMA, QWEN2, QWEN3, random_model
from tests.trainer.parallel.test_ranks import losses, spread
from tests.trainer.parallel.test_ranks import port as port
from tests.trainer.test_phases import chat_phase, hashes, run
from tests.trainer.test_rl import config_of
from trainer import loop, memory, tensor_file
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import open_final
from trainer.config import ImportSpec, load_phase
from trainer.device import Machine
from trainer.errors import Refused
from trainer.model import changes, export
from trainer.model.decoder import Decoder, Linear
from trainer.parallel import fitting
from trainer.plan import TrainingRequest, recipe
from trainer.recipes import PROFILES
from trainer.records.phase_registry import starts_from
from trainer.speed import training_setup

CPU = Machine(torch.device("cpu"), torch.float32, 1)
WHO = Persona(name="Bosun", maker="a crew", purpose="to answer")
BASE = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)


def adapted(phase: str = "sft", **changed) -> AdapterPhaseConfig:
    config = with_adapter(AdapterFlags(adapter="lora"), chat_phase(phase, steps=12))
    adapter = replace(config.adapter, **changed.pop("adapter", {"rank": 4, "alpha": 8.0}))
    return replace(config, adapter=adapter, **changed)


def attached(model: Decoder, config: AdapterPhaseConfig, std: float = 0.0) -> Decoder:
    """Return a model with an adapter, with B drawn from `std`."""
    model.requires_grad_(False)
    here = replace(config, model=model.config, sequence_len=64)
    Lora().attach(model, here)
    Lora().initialize(model, here)
    generator = torch.Generator().manual_seed(8)
    for name, one in model.named_parameters():
        if name.endswith("lora_B.weight"):
            one.data.normal_(std=std, generator=generator)
    return model


def trained_whole_and_in_parts(world, monkeypatch, config):
    """Train mid at once, and with a stop after four steps; return the artifact, whose bits must be equal."""
    assert run(world, monkeypatch, "mid", config, world.making("mid", base=BASE)) == 0
    stops = iter([False] * 4 + [True] + [False] * 100)
    parted = replace(world.making("mid", "e" * 64, base=BASE), name="mid_checkpoints/parted")
    with monkeypatch.context() as hasty:
        hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: next(stops)))
        assert run(world, monkeypatch, "mid", config, parted) == 75
    assert run(world, monkeypatch, "mid", config, parted) == 0
    mid = world.store / "mid_checkpoints/tiny"
    assert hashes(world.store / "mid_checkpoints/parted") == hashes(mid)
    return mid


@pytest.mark.nightly
@pytest.mark.slow
def test_adapter_is_trained_resumed_continued_and_used(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny(steps=6)) == 0
    config = adapted("mid", adapter={"rank": 4, "alpha": 8.0, "dropout": 0.2})
    mid = trained_whole_and_in_parts(world, monkeypatch, config)

    learnt = open_final(mid).tensors("model")
    assert {name.rpartition(".lora_")[2] for name in learnt} == {"A.weight", "B.weight"}
    assert sum(one.numel() for one in learnt.values()) == config.num_learning < TINY.num_params / 5
    about = changes.read_changed(mid / "hf")
    assert (about.name, about.fingerprint) == (BASE.name, BASE.fingerprint)
    assert {"config.json", "tokenizer.json", "adapter_config.json", "adapter_model.safetensors"} <= {
        one.name for one in (mid / "hf").iterdir()
    }
    assert not (mid / "hf" / "model.safetensors").exists()

    before = Input(name="mid_checkpoints/tiny", fingerprint="f" * 64)
    making = world.making("sft", mid=before, base=BASE)
    assert run(world, monkeypatch, "sft", replace(config, phase="sft"), making) == 0
    sft = world.store / "sft_checkpoints/tiny"
    assert changes.read_changed(sft / "hf") == about
    first = json.loads((sft / "metrics.jsonl").read_text().splitlines()[0])
    last = json.loads((mid / "metrics.jsonl").read_text().splitlines()[-1])
    assert first["loss"] < 1.1 * last["loss"]  # the phase sft has continued the adapter of mid
    capfd.readouterr()
    other = adapted("sft", adapter={"rank": 2})
    assert run(world, monkeypatch, "sft", other, replace(making, fingerprint="d" * 64)) == 2
    assert "has rank 4 or targets other than this phase" in capfd.readouterr().err
    assert run(world, monkeypatch, "sft", chat_phase("sft", steps=3), replace(making, fingerprint="c" * 64)) == 0
    assert (world.store / "sft_checkpoints/tiny/hf/model.safetensors").is_file()


@pytest.mark.nightly
@pytest.mark.slow
def test_third_phase_continues_the_adapter_of_two_earlier_phases(world, monkeypatch):
    """Each adapter continues the adapter before, and the whole model below all adapters is base."""
    assert run(world, monkeypatch, "base", tiny(steps=3, dtype="float32")) == 0
    inputs = {"base": BASE}
    for phase in ("mid", "sft"):
        config = adapted(phase, steps=3, dtype="float32")
        assert run(world, monkeypatch, phase, config, world.making(phase, **inputs)) == 0
        inputs[phase] = Input(name=f"{phase}_checkpoints/tiny", fingerprint="f" * 64)
    still = {"steps": 1, "optimizer": replace(tiny().optimizer, lr=0.0, muon_lr=0.0, weight_decay=0.0)}
    rl = with_adapter(AdapterFlags(adapter="lora"), config_of("rl", beta=0.1))
    rl = replace(rl, **still, adapter=replace(rl.adapter, rank=4, alpha=8.0))
    assert run(world, monkeypatch, "rl", rl, world.making("rl", **inputs)) == 0
    made = world.store / "rl_checkpoints/tiny"
    assert changes.read_changed(made / "hf") == changes.read_changed(world.store / "mid_checkpoints/tiny/hf")
    learnt, before = (open_final(world.store / f"{one}_checkpoints/tiny").tensors("model") for one in ("rl", "sft"))
    assert learnt.keys() == before.keys() and all(torch.equal(one, before[name]) for name, one in learnt.items())
    (line,) = (made / "metrics.jsonl").read_text().splitlines()
    assert abs(json.loads(line)["kl"]) < 1e-4  # the reference is the model of sft: base with one adapter
    whole = config_of("rl")
    assert run(world, monkeypatch, "rl", replace(whole, **still), world.making("rl", "e" * 64, **inputs)) == 0
    found = export.read(world.store / "rl_checkpoints/tiny/hf").state_dict()
    wanted = export.read(world.store / "base_checkpoints/tiny/hf")
    Lora().apply(wanted, world.store / "sft_checkpoints/tiny/hf")
    for name, one in wanted.state_dict().items():
        torch.testing.assert_close(found[name], one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rslora", [False, True])
def test_merged_model_equals_the_model_with_an_adapter(tmp_path, shape, rslora):
    config = adapted(
        model=shape, sequence_len=64, adapter={"rank": 4, "rslora": rslora, "targets": MATRICES[:3] + MATRICES[5:]}
    )
    plain, apart, merged = random_model(shape), attached(random_model(shape), config, std=0.01), random_model(shape)
    Lora().write(tmp_path, apart, config, changes.ChangedModel(name="x", fingerprint="y", weights_sha256="z"))
    Lora().apply(merged, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(apart(IDS), merged(IDS), rtol=1e-5, atol=1e-5)
        assert (apart(IDS) - plain(IDS)).abs().max() > 0.01
    again = attached(random_model(shape), config)
    Lora().restore(again, tmp_path)
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in apart.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_decoder_follows_the_adapter_and_shares_the_other_weights(dtype):
    config = adapted(model=QWEN3, sequence_len=64, adapter={"rank": 4, "targets": ("q_proj", "down_proj")})
    apart = random_model(QWEN3)
    apart.compute_dtype = dtype
    apart = attached(apart.to(dtype), config, std=0.01)
    found = None
    for step in range(2):
        for name, one in apart.named_parameters():
            if "lora_B" in name:
                one.data.add_(0.01 * step)
        found = Lora().merged(apart, found)
        with torch.no_grad():
            torch.testing.assert_close(apart(IDS), found(IDS), rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 0.1)
    mine, theirs = dict(found.named_parameters()), apart.state_dict()
    own = {name for name, one in mine.items() if one.data_ptr() != theirs[name].data_ptr()}
    assert own == {name for name in mine if name.rpartition(".weight")[0].endswith(("q_proj", "down_proj"))}
    assert not any(one.requires_grad for one in mine.values()) and mine.keys() < theirs.keys()


def test_gradients_of_an_adapted_matrix_equal_the_gradients_of_the_formula():
    torch.manual_seed(2)
    base, adapter = Linear(6, 5, bias=True).requires_grad_(False), AdapterConfig(rank=3, alpha=6)
    layer, x = AdaptedLinear(base, adapter), torch.randn(2, 4, 6)
    a, b = (one.weight.data.normal_().clone().requires_grad_() for one in (layer.lora_A, layer.lora_B))
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = layer(mine), other @ base.weight.t() + base.bias + 2.0 * (other @ a.t() @ b.t())
    torch.testing.assert_close(found, wanted)
    for one in (found, wanted):
        one.square().sum().backward()
    for one, same in ((mine, other), (layer.lora_A.weight, a), (layer.lora_B.weight, b)):
        torch.testing.assert_close(one.grad, same.grad)
    assert layer.weight.grad is None and layer.bias.grad is None


@pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_are_equal_with_every_way_of_recomputation(shape, dropout):
    grads = []
    for recompute, keep_products in ((False, False), (True, False), (True, True)):
        config = adapted(
            model=shape,
            sequence_len=64,
            dtype="float32",
            compile="never",
            recompute=recompute,
            keep_products=keep_products,
            adapter={"rank": 4, "dropout": dropout},
        )
        model = attached(random_model(shape), config, std=0.1)
        with training_setup(model, config, CPU):
            torch.manual_seed(4)
            model.loss(IDS[:, :30], IDS[:, 1:31]).backward()
        grads.append({name: one.grad for name, one in model.named_parameters() if one.requires_grad})
    for others in grads[1:]:
        for name, one in grads[0].items():
            torch.testing.assert_close(others[name], one)


def test_only_adapters_get_gradients_and_dropout_is_repeated_under_recomputation():
    config, grads = adapted(adapter={"rank": 4, "dropout": 0.5}), []
    for recompute in (False, True):
        model = attached(random_model(TINY), config, std=0.1)
        model.recompute = recompute
        torch.manual_seed(4)
        model.loss(IDS[:, :30] % TINY.vocab_size, IDS[:, 1:31] % TINY.vocab_size).backward()
        grads.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
        assert grads[-1].keys() == model.learning_state().keys()
    assert all(torch.equal(one, grads[1][name]) for name, one in grads[0].items())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"adapter": {"rank": 17}}, "rank is 17; the matrix k_proj has rank 16 at most"),
        ({"adapter": {"targets": ("q_proj", "lm_head")}}, "lm_head cannot be adapted; known: q_proj"),
        ({"adapter": {"targets": ()}}, "targets must name at least one matrix"),
        ({"adapter": {"kind": "dora"}}, "adapter is 'dora'; known: lora"),
        ({"adapter": {"dropout": 1.0}}, "dropout is 1.0; it must be below 1"),
        ({"dtype": "float8"}, "adapters are trained in bfloat16 or float32 only"),
        ({"model": replace(TINY, mlp="relu2")}, "the model has no gate_proj"),
    ],
)
def test_impossible_adapter_is_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        adapted(**changed)


def test_base_trains_a_whole_model_and_rl_of_an_imported_model_has_ten_times_the_rate_of_whole_models():
    assert with_adapter(AdapterFlags(adapter="lora"), tiny()) == tiny()
    rl = PROFILES["smoke"]().phases["rl"]
    slow = replace(rl, adopted=True, optimizer=replace(rl.optimizer, lr=3e-6))
    assert [with_adapter(AdapterFlags(adapter="lora"), one).optimizer.lr for one in (rl, slow)] == [1e-3, 3e-5]


def test_plan_gives_the_adapter_to_requested_phases_and_the_changed_model_to_later_ones():
    flags = phase_changes([AdapterFlags(adapter="lora"), AdapterFlags()])
    wanted = TrainingRequest(phases=("mid", "sft"), persona=WHO, changes=flags)
    nodes = recipe(replace(wanted, options={"mid.adapter.rank": "8", "sft.optimizer.lr": "2e-3"}))
    assert isinstance(nodes["mid"].spec, AdapterPhaseConfig) and not isinstance(nodes["base"].spec, AdapterPhaseConfig)
    assert (nodes["sft"].spec.adapter.rank, nodes["sft"].spec.optimizer.lr) == (8, 2e-3)
    assert (nodes["mid"].spec.adapter.rank, nodes["mid"].spec.optimizer.lr) == (8, 1e-3)
    assert "packs/adapters" in nodes["sft"].code and "packs/adapters" not in nodes["base"].code
    assert {"mid", "base"} <= nodes["sft"].inputs.keys()
    alone = recipe(replace(wanted, phases=("sft",)))
    assert not isinstance(alone["mid"].spec, AdapterPhaseConfig) and "base" not in alone["sft"].inputs
    assert starts_from("sft", nodes["sft"].inputs) == "mid" and starts_from("mid", nodes["sft"].inputs) == "base"
    with pytest.raises(UsageError, match="--adapter: no effect on the phase base"):
        recipe(replace(wanted, phases=("base",)))


def three_phases(profile: str = "smoke", kind: str = "lora", **options: str) -> dict[str, AdapterPhaseConfig]:
    """Return the configurations of mid, sft and rl in a plan, each with an adapter."""
    phases, flags = ("mid", "sft", "rl"), phase_changes([AdapterFlags(adapter=kind)]) if kind else {}
    options = {path.replace("__", "."): text for path, text in options.items()}
    nodes = recipe(TrainingRequest(phases=phases, profile=profile, persona=WHO, changes=flags, options=options))
    return {name: nodes[name].spec for name in phases}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"mid__adapter__rank": "16"}, {"rank": 16}),
        ({"mid__adapter__alpha": "8"}, {"alpha": 8.0}),
        ({"mid__adapter__rslora": "true"}, {"rslora": True}),
        ({"mid__adapter__targets": "q_proj,v_proj"}, {"targets": ("q_proj", "v_proj")}),
        ({"mid__adapter__rank": "16", "sft__adapter__rank": "16", "rl__adapter__alpha": "64"}, {"rank": 16}),
        ({"mid__adapter__rank": "16", "sft__adapter__dropout": "0.1"}, {"rank": 16}),
    ],
)
def test_later_phases_take_the_settings_of_the_adapter_that_they_continue(options, wanted):
    found = {name: one.adapter for name, one in three_phases(**options).items()}
    plain = three_phases()["mid"].adapter
    assert {name: replace(one, dropout=0.0) for name, one in found.items()} == dict.fromkeys(
        found, replace(plain, **wanted)
    )
    assert found["sft"].dropout == float(options.get("sft__adapter__dropout", 0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sft__adapter__rank": "16"},
            "sft.adapter.rank is 16; .* of the phase mid, with 32. Leave sft.adapter.rank out",
        ),
        ({"mid__adapter__rank": "16", "sft__adapter__rank": "32"}, "sft.adapter.rank is 32; .*mid, with 16"),
        ({"rl__adapter__alpha": "8"}, "rl.adapter.alpha is 8; .* of the phase sft, with 64"),
        (
            {"mid__adapter__rslora": "true", "sft__adapter__rslora": "false"},
            "sft.adapter.rslora is false; .* with true",
        ),
        (
            {"sft__adapter__targets": "q_proj,v_proj"},
            "sft.adapter.targets is q_proj,v_proj; .* or set mid.adapter.targets",
        ),
    ],
)
def test_settings_that_contradict_the_continued_adapter_are_refused_in_the_plan(options, said):
    with pytest.raises(ConfigError, match=said):
        three_phases(**options)


@pytest.mark.parametrize(
    ("lines", "kind", "wanted"),
    [
        ("{sft: {adapter: {rank: 16}, optimizer: {lr: 5.0e-4}}}", "", ("lora", 16, 5e-4)),
        ("{sft: {adapter: {rank: 16}, optimizer: {lr: 5.0e-4}}}", "lora", ("lora", 16, 5e-4)),
        ("{sft: {adapter: {rank: 16}, optimizer: {lr: 5.0e-4}}}", "qlora", ("qlora", 16, 5e-4)),
        ("{sft: {adapter: {rank: 16}}}", "", ("lora", 16, 1e-3)),
        ("{sft: {adapter: {rank: 16, kind: qlora}}}", "lora", ("lora", 16, 1e-3)),
        ("{sft: {optimizer: {lr: 5.0e-4}}}", "lora", ("lora", 32, 1e-3)),
    ],
)
def test_adapter_and_rates_of_a_profile_file_are_kept_and_the_flag_sets_the_kind(tmp_path, lines, kind, wanted):
    (tmp_path / "mine.yaml").write_text(f"profile: smoke\nphases: {lines}\n")
    flags = phase_changes([AdapterFlags(adapter=kind)]) if kind else {}
    asked = TrainingRequest(phases=("sft",), profile=str(tmp_path / "mine.yaml"), persona=WHO, changes=flags)
    config = recipe(asked)["sft"].spec
    assert (config.adapter.kind, config.adapter.rank, config.optimizer.lr) == wanted
    assert (config.optimizer.muon_lr, config.optimizer.weight_decay, config.optimizer.head_lr) == (0.0, 0.0, None)


@pytest.mark.parametrize("kind", ["", "lora"])
@pytest.mark.parametrize("optimizer", ["{}", "{lr: 5.0e-4}"])
@pytest.mark.parametrize(("phase", "rate"), [("sft", 1e-3), ("rl", 3e-5)])
def test_adapter_of_a_profile_file_has_the_rates_of_adapters_on_an_imported_model(
    tmp_path, phase, rate, optimizer, kind
):
    """An import replaces the rates of each profile file."""
    file = tmp_path / "mine.yaml"
    file.write_text(f"profile: smoke\nphases: {{{phase}: {{adapter: {{rank: 4}}, optimizer: {optimizer}}}}}\n")
    flags = phase_changes([AdapterFlags(adapter=kind)]) if kind else {}
    init = ImportSpec(source="/models/one", model=TINY, has_tokenizer=True)
    asked = TrainingRequest(phases=(phase,), profile=str(file), persona=WHO, init=init, changes=flags)
    found = recipe(asked)[phase].spec
    assert (found.adapter.rank, found.optimizer.lr, found.optimizer.weight_decay) == (4, pytest.approx(rate), 0.0)
    chosen = recipe(replace(asked, options={f"{phase}.optimizer.lr": "0.002"}))[phase].spec
    assert chosen.optimizer.lr == 0.002


def test_profile_file_with_another_adapter_in_a_later_phase_is_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("profile: smoke\nphases: {mid: {adapter: {rank: 16}}, sft: {adapter: {rank: 8}}}\n")
    with pytest.raises(ConfigError, match="sft.adapter.rank is 8; .* of the phase mid, with 16"):
        three_phases(str(file))


def test_settings_of_an_adapter_pass_through_the_file_of_a_step():
    config = adapted(adapter={"rank": 4, "targets": ("q_proj", "v_proj")})
    found = load_phase(json.loads(json.dumps(asdict(config))), "spec")
    assert found == config and found.digest() == config.digest() != chat_phase("sft", steps=12).digest()
    assert AdapterConfig(rank=16, alpha=8, rslora=True).scaling == 2.0


@pytest.mark.parametrize(
    ("told", "altered", "base"),
    [
        ({"own_chat": True}, "", "us/one"),
        ({"own_chat": False}, "rows for chat tokens", "imported/x"),
        ({"own_chat": True, "format": "nanochat"}, "converted from nanochat", "imported/x"),
        ({"own_chat": True, "source": "/models/one"}, "", "imported/x"),
    ],
)
def test_adapter_names_a_model_of_the_hub_only_with_the_weights_of_the_training(tmp_path, told, altered, base):
    draft = tmp_path / "draft"
    (draft / "hf").mkdir(parents=True)
    (draft / "hf" / "config.json").write_text("{}")
    (draft / "hf" / "model.safetensors").write_bytes(bytes(8))
    about = {"import": {"source": "hf://us/one", "revision": "c" * 40, **told}}
    Store(tmp_path / "store").publish(draft, "imported/x", "f" * 64, about)
    folder = Store(tmp_path / "store").path("imported/x", "f" * 64)
    of = changes.changed_model(Input(name="imported/x", fingerprint="f" * 64), folder)
    write_config(tmp_path, AdapterConfig(), of)
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (of.altered, said["base_model_name_or_path"]) == (altered, base)
    assert said["revision"] == ("c" * 40 if base == "us/one" else None)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("bfloat16", "", "beside a model rounded from bfloat16, and continues beside the unrounded model"),
        ("", "float32", "beside the unrounded model, and continues beside a model rounded from float32"),
        ("bfloat16", "bfloat16", ""),
        ("", "", ""),
    ],
)
def test_other_rounding_of_the_model_in_a_later_phase_is_reported(tmp_path, before, now, said):
    of = changes.ChangedModel(name="x", fingerprint="y", weights_sha256="z", rounding=before)
    changes.write_changed(tmp_path, of)
    found = changes.rounding_difference(tmp_path, now)
    assert said in found and bool(said) == bool(found)


@pytest.fixture
def stored(tmp_path):
    """Return a folder with an adapter of the shape TINY, and a function that changes a file of JSON in the folder."""
    config = adapted()
    model = attached(random_model(TINY), config, std=0.02)
    folder = tmp_path / "hf"
    folder.mkdir()
    Lora().write(folder, model, config, changes.ChangedModel(name="x", fingerprint="y", weights_sha256="z"))
    return folder


def rewrite(folder: Path, **said: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))


def with_tensors(folder: Path, change) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = change(tensor_file.read(path))
    path.unlink()
    tensor_file.write(path, tensors)


def renamed(old: str, new: str):
    return lambda folder: with_tensors(folder, lambda found: {one.replace(old, new): t for one, t in found.items()})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is missing"),
        (lambda folder: os.truncate(folder / "adapter_model.safetensors", 3000), "damaged or not a safetensors file"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json"),
        (lambda folder: rewrite(folder, peft_type="VERA"), "peft_type is 'VERA'; supported: LORA"),
        (lambda folder: rewrite(folder, use_dora=True), "use_dora is True, which is not supported"),
        (lambda folder: rewrite(folder, init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
        (lambda folder: rewrite(folder, init_lora_weights="loftq"), "init_lora_weights is 'loftq', which is not suppo"),
        (lambda folder: rewrite(folder, r=0), "rank is 0"),
        (lambda folder: rewrite(folder, r="4"), "r is of the wrong kind"),
        (lambda folder: rewrite(folder, r=2), "instead of .* the adapter belongs to another model"),
        (lambda folder: rewrite(folder, target_modules=["lm_head"]), "lm_head cannot be adapted"),
        (renamed("q_proj", "c_attn"), "changes base_model.model.model.layers.0.self_attn.c_attn.lora_A.weight"),
        (renamed("layers.1", "layers.7"), "layers.7.* which the model does not have"),
        (
            lambda folder: with_tensors(folder, lambda found: {n: t for n, t in found.items() if "lora_B" not in n}),
            "lora_B.weight is missing",
        ),
        (
            lambda folder: with_tensors(folder, lambda found: {n: t * torch.nan for n, t in found.items()}),
            "has numbers that are not finite",
        ),
        (lambda folder: with_tensors(folder, lambda found: {"x": torch.ones(1)}), "the adapter changes x; known"),
    ],
)
def test_unusable_adapter_is_refused_in_words(stored, damage, said):
    damage(stored)
    with pytest.raises(Refused, match=said):
        Lora().apply(random_model(TINY), stored)


def test_adapter_of_other_weights_or_of_another_vocabulary_is_refused(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    assert run(world, monkeypatch, "sft", adapted(), world.making("sft", base=BASE)) == 0
    joined = world.root / "joined"
    joined.mkdir()
    artifact = world.store / "sft_checkpoints/tiny"
    (joined / "hf").symlink_to(artifact / "hf")
    for dtype in ("float32", "bfloat16"):
        words = ["export", "--model", str(artifact), "--out", str(world.root / "whole"), "--dtype", dtype]
        assert main(words) == 2 and not (world.root / "whole").exists()
        assert "and no whole model. Give the name of the artifact" in capfd.readouterr().err
    with pytest.raises(Refused, match="changes? .*the model base_checkpoints/tiny, and no whole model"):
        export.read(joined / "hf")
    base = world.root / "base"
    shutil.copytree(world.store / "base_checkpoints/tiny/hf", base)
    (joined / "base").symlink_to(base)
    whole = export.read(joined / "hf")
    assert not torch.equal(
        whole.model.layers[0].mlp.up_proj.weight, export.read(base).model.layers[0].mlp.up_proj.weight
    )
    (base / "model.safetensors").unlink()
    other = random_model(TINY).state_dict()
    export.write_weights(base, other, torch.float32)
    with pytest.raises(Refused, match="base_checkpoints/tiny with weights .* Use the model of the training"):
        export.read(joined / "hf")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "vocab_size": 321}))
    (base / "model.safetensors").unlink()
    export.write_weights(base, random_model(replace(TINY, vocab_size=321)).state_dict(), torch.float32)
    with pytest.raises(Refused, match="a model of another shape"):
        export.read(joined / "hf")


def test_estimate_counts_the_adapter_and_the_frozen_model():
    whole = PROFILES["smollm2_135m"]().phases["sft"]
    config = with_adapter(AdapterFlags(adapter="lora"), whole)
    mine, other = memory.estimate(config), memory.estimate(whole)
    assert config.num_learning == 30 * 32 * sum(map(sum, sides(config.model).values())) == 9_768_960
    assert mine.gradients == 4 * config.num_learning and mine.optimizer == 8 * config.num_learning
    assert mine.frozen == 2 * whole.model.num_params and mine.total < other.total
    sharded = memory.estimate(config, parts=8)
    matrices = whole.model.num_matrix_params - whole.model.vocab_size * whole.model.hidden_size
    gathered = 2 * matrices // 30 + whole.model.num_params - matrices
    assert sharded.frozen == 2 * whole.model.num_params // 8 + 2 * gathered < mine.frozen
    state = [one.gradients + one.optimizer + memory.host_bytes(of) for one, of in ((mine, config), (other, whole))]
    assert state[0] <= 0.25 * state[1]
    assert 0.6 < config.flops_per_token(512) / whole.flops_per_token(512) < 0.8


def test_processes_keep_the_whole_model_where_it_cannot_be_sharded():
    assert adapted(parallel="fsdp").parallel == "fsdp" and adapted().parallel == "auto"
    assert [*memory.ways(adapted(), 2)] == ["ddp", "fsdp"]
    rl = with_adapter(AdapterFlags(adapter="lora"), PROFILES["smoke"]().phases["rl"])
    for config in (adapted(adapter={"kind": "qlora", "rank": 4}), rl):
        assert [*memory.ways(config, 8)] == ["ddp"]
        said = fitting.advice(config, 1 << 20, "ddp", per_node=8)
        assert "a GPU with" in said and "fsdp" not in said
    why = "parallel is fsdp; matrices in 4 bits are not sharded, so set parallel=ddp"
    with pytest.raises(ConfigError, match=why):
        adapted(adapter={"kind": "qlora", "rank": 4}, parallel="fsdp")


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_nodes_train_the_adapter_of_one_process(world, port, monkeypatch, parallel):
    """One process and two nodes have equal losses; node 0 writes the adapter with the parts of both nodes."""
    assert run(world, monkeypatch, "base", tiny(steps=3, dtype="float32")) == 0
    config = adapted("mid", steps=6, rows=4, micro_rows=1, dtype="float32", adapter={"rank": 4, "alpha": 8.0})
    assert run(world, monkeypatch, "mid", config, world.making("mid", base=BASE)) == 0
    spread_making = replace(world.making("mid", "e" * 64, base=BASE), name="mid_checkpoints/two")
    several = replace(config, parallel=parallel)
    for code, words in map(finish, spread(world, several, port, spread_making, spread_making)):
        assert code == 0, words
    one, two = world.store / "mid_checkpoints/tiny", world.store / "mid_checkpoints/two"
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    learnt, also = (open_final(folder).tensors("model") for folder in (one, two))
    assert learnt.keys() == also.keys()
    for name, values in learnt.items():
        torch.testing.assert_close(also[name], values, rtol=1e-3, atol=1e-5)
