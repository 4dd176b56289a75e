"""On-policy distillation: the gradient of the reverse KL divergence, the flag, the refusals, and the training."""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from data.config import ConfigError, Input, Persona
from flows.specs.work import phase_changes
from infra.errors import UsageError
from infra.records import Inventory, Request
from infra.settings import Settings
from packs.preferences.control.flags import PreferenceFlags
from packs.preferences.control.teacher import resolve as resolved
from packs.preferences.records.opd_config import OpdConfig, Teacher
from packs.preferences.trainer.judged import divergence, judged
from store.artifacts.artifacts import Store
from tests.trainer.conftest import TINY, tiny
from tests.trainer.model.test_model import random_model
from tests.trainer.test_phases import hashes, run
from tests.trainer.test_rl import config_of
from tests.world import ROOT
from trainer import loop, memory
from trainer.config import as_phase, load_phase
from trainer.model.decoder import Decoder
from trainer.model.token_losses import token_logprobs
from trainer.objectives.rl import PolicyLoss, worth
from trainer.objectives.shared_rows import hidden_of, pack_answers
from trainer.plan import TrainingRequest, recipe, resolve
from trainer.recipes import PROFILES
from trainer.records.rl_config import RlConfig

BASE = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
LARGE = Teacher(source="store://base_checkpoints/large", revision="e" * 64, params=TINY.num_params)
WANTED = TrainingRequest(phases=("opd",), profile="tiny", persona=Persona(name="Ada", maker="us", purpose="to help"))
SMALL, PROMPT = replace(TINY, vocab_size=48), [3, 9, 1]


def loss_over_all_ids(student: Decoder, teacher: Decoder, prompt: list[int]) -> tuple[Tensor, float]:
    """Return the loss and `divergence` of answers of one id each, for every id, weighted by the probability of the id.

    The sum over these answers is the expectation over the answers that the student draws.
    """
    ids = range(SMALL.vocab_size)
    batch, spots = pack_answers([prompt] * len(ids), [[one] for one in ids], 0, room=256)
    arrays = {name: torch.from_numpy(one) for name, one in batch.items()}
    counted = (arrays["targets"].flatten() >= 0).nonzero().squeeze(1)

    def logprobs(model: Decoder) -> np.ndarray:
        hidden = hidden_of(model, arrays).flatten(0, 1)[counted]
        found = np.zeros(batch["targets"].size, np.float32)
        targets = arrays["targets"].flatten()[counted]
        found[counted.numpy()] = token_logprobs(hidden, model.head, targets, model.shape, 1.0).detach().numpy()
        return found.reshape(batch["targets"].shape)

    own, taught = logprobs(student), logprobs(teacher)
    each = np.exp(own.reshape(-1)[[int(one[0]) for one in spots]])
    assert each.sum() == pytest.approx(1.0, abs=1e-4)
    batch |= worth(batch["targets"], spots, np.zeros(len(spots)), each)
    batch = judged({**batch, "times": batch["weights"], "reference": taught}, own)
    loss, _ = PolicyLoss(RlConfig()).loss(student, {name: torch.from_numpy(one) for name, one in batch.items()})
    return loss, divergence(batch)


def test_gradient_over_all_ids_equals_the_gradient_of_the_reverse_kl_divergence():
    student, teacher = random_model(SMALL), random_model(replace(SMALL, num_hidden_layers=1))
    loss, kl = loss_over_all_ids(student, teacher, PROMPT)
    loss.backward()
    mine = {name: one.grad.clone() for name, one in student.named_parameters()}
    student.zero_grad()
    of_student, of_teacher = (torch.log_softmax(one(torch.tensor([PROMPT]))[0, -1], -1) for one in (student, teacher))
    wanted = (of_student.exp() * (of_student - of_teacher.detach())).sum()
    wanted.backward()
    assert (loss.item(), kl) == pytest.approx((wanted.item(), wanted.item()), rel=1e-4)
    for name, one in student.named_parameters():
        torch.testing.assert_close(mine[name], one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.nightly
def test_loss_over_all_ids_equals_the_loss_of_trl():
    """GKDTrainer of TRL with beta 1 computes the reverse KL divergence."""
    from trl.experimental.gkd import GKDTrainer

    student, teacher = random_model(SMALL), random_model(replace(SMALL, num_hidden_layers=1))
    logits = (model(torch.tensor([PROMPT]))[:, -1:] for model in (student, teacher))
    theirs = GKDTrainer.generalized_jsd_loss(*logits, beta=1)
    assert loss_over_all_ids(student, teacher, PROMPT)[0].item() == pytest.approx(theirs.item(), rel=1e-4)


def test_plan_names_the_teacher_and_refuses_the_phase_without_one(tmp_path):
    with pytest.raises(UsageError, match="phase opd has no teacher. Name a model .* --teacher hf://user/repo"):
        resolve(WANTED, Inventory("x"), ROOT, run="r", request=Request(run="r"))
    config = recipe(WANTED)["opd"].spec
    assert isinstance(config, OpdConfig) and recipe(WANTED)["opd"].inputs.keys() == {"tokenizer", "sft", "sort"}
    taught = replace(config, teacher=replace(LARGE, params=3 * config.model.num_params))
    assert load_phase(json.loads(json.dumps(asdict(taught))), "spec") == taught
    assert taught.digest() != config.digest() and taught.num_frozen == 3
    assert memory.estimate(taught).frozen == 3 * memory.estimate(config).frozen
    for make in PROFILES.values():
        assert make(("opd",)).phases["opd"].rl.beta == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"beta": 0.1}, "rl.beta: no effect"), ({"overlong": 2}, "rl.overlong: no"), ({"loss": "gspo"}, "known: dapo")],
)
def test_settings_of_rewards_are_refused(changed, said):
    config = recipe(WANTED)["opd"].spec
    with pytest.raises(ConfigError, match=said):
        replace(config, rl=replace(config.rl, **changed))


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    monkeypatch.setenv("SLIPWAY_STORE", str(tmp_path / "store"))
    return Settings.load(ROOT)


def published(settings: Settings, tmp_path: Path, name: str, **about: object) -> None:
    folder = tmp_path / name.replace("/", "-")
    folder.mkdir()
    (folder / "x").write_text("1")
    Store(settings.store).publish(folder, name, hashlib.sha256(name.encode()).hexdigest(), about)


def test_teacher_is_an_artifact_with_a_whole_model(settings, tmp_path):
    published(settings, tmp_path, "chatsft_checkpoints/large", params=77)
    published(settings, tmp_path, "chatsft_checkpoints/lora", params=77, changes={"name": "x"})
    published(settings, tmp_path, "tokenizer")
    flags = [PreferenceFlags(teacher="chatsft_checkpoints/large")]
    nodes = recipe(replace(WANTED, changes=phase_changes(flags, settings)))
    digest = hashlib.sha256(b"chatsft_checkpoints/large").hexdigest()
    wanted = Teacher(source="store://chatsft_checkpoints/large", revision=digest, params=77)
    assert nodes["opd"].spec.teacher == wanted and "packs/preferences" not in nodes["sft"].code
    for typed, said in (
        ("chatsft_checkpoints/lora", "is an adapter, .* inv export chatsft_checkpoints/lora --merge"),
        ("chatsft_checkpoints/none", "inv ckpt.list"),
        ("tokenizer", "the artifact is not a model"),
        ("hf://a", "expected hf://user/repo"),
        ("http://127.0.0.1:8000", "expected http://HOST:PORT/v1#MODEL"),
        ("s3://bucket/x", "expected hf://user/repo, http://HOST:PORT/v1#MODEL, or the name of an artifact"),
    ):
        with pytest.raises(UsageError, match=said):
            resolved(PreferenceFlags(teacher=typed), settings, None)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        (("sft",), "--pairs and --teacher: no effect on the phase sft"),
        (("sft", "dpo"), "--teacher: no effect on the phase sft and dpo"),
        (("sft", "opd"), "--pairs: no effect on the phase sft and opd"),
        (("dpo", "opd"), ""),
    ],
)
def test_each_flag_without_its_phase_is_refused(settings, tmp_path, phases, said):
    published(settings, tmp_path, "chatsft_checkpoints/large", params=77)
    flags = PreferenceFlags(pairs="other", teacher="chatsft_checkpoints/large")
    wanted = replace(WANTED, phases=phases, changes=phase_changes([flags], settings))
    if said:
        with pytest.raises(UsageError, match=f"^{said}$"):
            recipe(wanted)
        return
    nodes = recipe(wanted)
    assert nodes["dpo"].spec.mixture == {"other": 1.0} and nodes["opd"].spec.teacher.params == 77


def distilled(**changes) -> OpdConfig:
    config = config_of("rl")
    answers = replace(config.rl, reward="", eval_every=0)
    return as_phase(OpdConfig, config, phase="opd", steps=8, rl=answers, teacher=LARGE, **changes)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.pack("adapters")
def test_student_and_its_adapter_approach_the_teacher_and_resume_bit_for_bit(world, monkeypatch, capfd):
    large = replace(world.making("base", "e" * 64), name="base_checkpoints/large")
    assert run(world, monkeypatch, "base", tiny(steps=40, dtype="float32"), large) == 0
    assert run(world, monkeypatch, "base", tiny(steps=6, dtype="float32", seed=3)) == 0

    def lines(name: str) -> list[dict[str, float]]:
        return [json.loads(line) for line in (world.store / name / "metrics.jsonl").read_text().splitlines()]

    making = world.making("opd", base=BASE)
    assert run(world, monkeypatch, "opd", distilled(), making) == 0
    whole = lines("opd_checkpoints/tiny")
    assert whole[0]["loss"] == pytest.approx(whole[0]["kl"], abs=1e-4) and whole[0]["kl"] > 0.05
    assert np.mean([one["kl"] for one in whole[-2:]]) < 0.8 * np.mean([one["kl"] for one in whole[:2]])

    stops = iter([False] * 3 + [True] + [False] * 100)
    parted = replace(world.making("opd", "d" * 64, base=BASE), name="opd_checkpoints/parted")
    with monkeypatch.context() as hasty:
        hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: next(stops)))
        assert run(world, monkeypatch, "opd", distilled(), parted) == 75
    assert run(world, monkeypatch, "opd", distilled(), parted) == 0
    assert hashes(world.store / "opd_checkpoints/parted") == hashes(world.store / "opd_checkpoints/tiny")

    optimizer = asdict(distilled().optimizer) | {"lr": 0.02, "weight_decay": 0.0}
    adapter = {"kind": "lora", "rank": 4, "alpha": 8.0}
    said = asdict(distilled(parallel="ddp")) | {"adapter": adapter, "optimizer": optimizer}
    config = load_phase(json.loads(json.dumps(said)), "spec")
    lora = replace(world.making("opd", "c" * 64, base=BASE), name="opd_checkpoints/lora")
    assert run(world, monkeypatch, "opd", config, lora) == 0
    adapted = lines("opd_checkpoints/lora")
    assert np.mean([one["kl"] for one in adapted[-2:]]) < 0.9 * np.mean([one["kl"] for one in adapted[:2]])
    assert (world.store / "opd_checkpoints/lora/hf/adapter_model.safetensors").is_file()

    capfd.readouterr()
    path = world.store / "base_checkpoints/large/hf/tokenizer.json"
    said = json.loads(path.read_text())
    other = world.root / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).symlink_to(path.with_name(name))
    vocab = said["model"]["vocab"]
    a, b = list(vocab)[40:42]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (other / "tokenizer.json").write_text(json.dumps(said))
    elsewhere = replace(distilled(), teacher=Teacher(source=str(other), revision="", params=1))
    assert run(world, monkeypatch, "opd", elsewhere, replace(making, fingerprint="b" * 64)) == 2
    assert "has another tokenizer than the model in training" in capfd.readouterr().err
