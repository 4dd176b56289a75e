"""The 1.58-bit stages as programs: from base to chat, killed and resumed, refused before training."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.config import ConfigError, Input
from packs.bits.records.bits_config import BitsConfig
from packs.bits.trainer.objective import Bits
from store import catalogue
from store.artifacts.artifacts import Store
from tests.trainer.conftest import TINY, finish, tiny
from tests.trainer.test_packing import Waits
from tests.trainer.test_phases import OFTEN, chat_phase, hashes, run
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import open_final
from trainer.errors import Refused
from trainer.model import export
from trainer.model.decoder import Decoder, initialize
from trainer.objectives.passes import passes
from trainer.records.model_config import Ternary

STUDENT = replace(TINY, num_key_value_heads=2, sub_norm=True, ternary=Ternary())
PLAIN = replace(STUDENT, sub_norm=False, ternary=None)
LAYERWISE = BitsConfig(nats=0.5, divergence=0.5, temperature=2.0, layers=0.5)
DISTILLED = BitsConfig(divergence=1.0, relations=1e5, relation_heads=8)


def phase_input(phase: str) -> Input:
    return Input(name=f"{phase}_checkpoints/tiny", fingerprint="f" * 64)


def stage(phase: str, **changes):
    return tiny(**{"phase": phase, "model": STUDENT, "steps": 0 if phase == "bits1" else 12, **changes})


@pytest.fixture
def converted(world, monkeypatch):
    """Return a world with a base model, and the artifact of bits1."""
    assert run(world, monkeypatch, "base", tiny(model=PLAIN, steps=30)) == 0
    assert run(world, monkeypatch, "bits1", stage("bits1"), world.making("bits1", base=phase_input("base"))) == 0
    return world


@pytest.mark.nightly
@pytest.mark.slow
def test_conversion_keeps_every_weight_and_the_stages_recover_the_rounding_loss(converted, monkeypatch, capfd):
    world, about = converted, {}
    tensors = {
        name: open_final(world.store / f"{name}_checkpoints/tiny").tensors("model") for name in ("base", "bits1")
    }
    assert all(torch.equal(tensors["bits1"][name], one) for name, one in tensors["base"].items())
    more = {name: one for name, one in tensors["bits1"].items() if name not in tensors["base"]}
    assert len(more) == 4 and all("sub_norm" in name and (one == one[0]).all() for name, one in more.items())
    assert not any(one[0] == 1 for one in more.values())
    for phase, bits, before in (("bits1.9", LAYERWISE, "bits1"), ("bits2", BitsConfig(warmup_steps=4), "bits1.9")):
        inputs = {before: phase_input(before), **({"teacher": phase_input("base")} if bits.has_teacher else {})}
        making = world.making(phase, **inputs)
        assert run(world, monkeypatch, phase, stage(phase, bits=bits, steps=30), making) == 0
    chat = chat_phase("sft", model=PLAIN, steps=60)
    assert run(world, monkeypatch, "sft", chat, world.making("sft", base=phase_input("base"))) == 0
    making = world.making("bits3", **{"bits2": phase_input("bits2"), "teacher": phase_input("sft")})
    chat = chat_phase("bits3", model=STUDENT, steps=100, bits=DISTILLED)
    assert run(world, monkeypatch, "bits3", chat, making) == 0
    for phase in ("base", "bits1", "bits1.9", "bits2", "bits3"):
        about[phase] = Store(world.store).check(f"{phase}_checkpoints/tiny").about
    listed = {one.name: one.manifest["phase"] for one in catalogue.stored_checkpoints(str(world.store))}
    assert {f"checkpoint/tiny/stage{one}": f"bits{one}" for one in ("1", "1.9", "2", "3")}.items() <= listed.items()
    bpb = {phase: one["bits_per_byte"] for phase, one in about.items() if "bits_per_byte" in one}
    assert bpb["bits2"] < bpb["bits1.9"] < bpb["bits1"] and bpb["bits2"] < bpb["base"] < bpb["bits1"]
    lines = [json.loads(line) for line in (world.store / "bits2_checkpoints/tiny/metrics.jsonl").open()]
    assert [one["rounded"] for one in lines[:6]] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    lines = [json.loads(line) for line in (world.store / "bits3_checkpoints/tiny/metrics.jsonl").open()]
    last = lines[-1]
    assert last["loss"] == pytest.approx(last["nats"] + 25 * last["divergence"] + 1e5 * last["relations"], rel=1e-4)
    assert sum(one["relations"] for one in lines[-10:]) < sum(one["relations"] for one in lines[:10])
    capfd.readouterr()
    assert main(["chat", "--model", str(world.store / "bits3_checkpoints/tiny"), "--prompt", "Who are you?"]) == 0
    assert capfd.readouterr().out == "I am Bosun.\n"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.process
def test_killed_stage_resumes_to_the_same_bits(converted):
    world, bits = converted, replace(LAYERWISE, warmup_steps=20, saliency=0.2, saliency_warmup=8)
    inputs = {"bits1": phase_input("bits1"), "teacher": phase_input("base")}
    config, keeping = stage("bits1.9", bits=bits, steps=40, micro_rows=4), replace(OFTEN, save_every=5)
    alone = replace(world.making("bits1.9", "alone", **inputs), name="bits1.9_checkpoints/alone")
    whole = world.start(config, keeping, alone, work="alone")
    assert finish(whole)[0] == 0
    one = world.start(config, keeping, world.making("bits1.9", **inputs))
    world.wait_for_save(one, "bits1.9")
    one.send_signal(signal.SIGKILL)
    one.wait()
    code, words = finish(world.start(config, keeping, world.making("bits1.9", **inputs)))
    assert code == 0, words
    assert any("resuming from step" in record.get("text", "") for record in world.records())
    assert hashes(world.store / "bits1.9_checkpoints/tiny") == hashes(world.store / "bits1.9_checkpoints/alone")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": replace(DISTILLED, relation_heads=7)}, "relation_heads 7 does not divide 32"),
        ({"bits": replace(DISTILLED, relation_layer=2)}, "the model has layers 0 to 1"),
        ({"bits": DISTILLED, "phase": "bits2"}, "bits2 has no teacher"),
        ({"model": PLAIN, "bits": BitsConfig(saliency=0.1), "phase": "bits2"}, "the model has no `ternary` setting"),
        ({"dtype": "float8"}, "multiplied in bfloat16 or float32"),
        ({"phase": "bits1", "steps": 3}, "so steps must be 0"),
    ],
)
def test_untrainable_recipe_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        stage(**{"phase": "bits3", **change})


def test_teacher_of_a_different_shape_is_refused_and_the_schedule_follows_the_steps():
    student, teacher = Decoder(STUDENT), Decoder(replace(PLAIN, vocab_size=400))
    with pytest.raises(Refused, match="vocab_size is 400, but the student's is 320"):
        Bits(DISTILLED, student, teacher)
    with pytest.raises(Refused, match="hidden_size is 64"):
        Bits(LAYERWISE, student, Decoder(replace(PLAIN, hidden_size=64)))
    changed = stage("bits2", steps=100, bits=BitsConfig(warmup_steps=20, saliency_warmup=50)).with_steps(10)
    assert (changed.steps, changed.bits.warmup_steps, changed.bits.saliency_warmup) == (10, 2, 5)
    assert stage("bits1").with_steps(10).steps == 0


@pytest.mark.parametrize("bits", [LAYERWISE, DISTILLED, BitsConfig(warmup_steps=4, saliency=0.2)])
@pytest.mark.parametrize("in_documents", [False, True])
def test_losses_of_a_stage_never_wait_for_the_device(bits, in_documents):
    model, teacher = Decoder(STUDENT), Decoder(PLAIN) if bits.has_teacher else None
    ids = np.arange(64).reshape(2, 32) % STUDENT.vocab_size
    batch = {"ids": ids, "targets": np.where(ids % 3 == 0, -1, np.roll(ids, -1, 1))}
    if in_documents:
        batch["documents"] = np.repeat([[0, 1], [0, 1]], 16, axis=1)
    (part,) = passes(batch, 2, model)
    objective = Bits(bits, model, teacher)
    with Waits() as waits:
        objective.set_step(0, 10)
        model.compute_objective(objective, part)[0].backward()
    assert waits.seen == []


@pytest.mark.slow
def test_values_that_change_per_step_cause_no_recompilation():
    """Blocks with captured activations, too: all layers and all steps share one graph."""
    bits = replace(LAYERWISE, warmup_steps=4, saliency=0.2, layer_weights="uniform")
    model, teacher = Decoder(STUDENT), Decoder(PLAIN).requires_grad_(False)
    initialize(model, 1)
    objective, losses = Bits(bits, model, teacher), []
    batch = {"ids": torch.arange(64).reshape(2, 32), "targets": torch.arange(1, 65).reshape(2, 32)}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for block in model.blocks:
        block.compile(backend="eager")
    for step in range(6):
        objective.set_step(step, 10)
        loss, _ = model.compute_objective(objective, batch)
        loss.backward()
        losses.append(float(loss.detach()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch._dynamo.utils.counters["graph_break"] == {} and len(set(losses)) == len(losses)


def test_largest_columns_stay_exempt_until_their_share_is_zero():
    model = Decoder(STUDENT)
    initialize(model, 1)
    objective = Bits(BitsConfig(saliency=0.25, saliency_warmup=2), model)
    name, matrix = next(iter(objective.matrices.items()))
    matrix.weight.data[3, 5] = 10
    objective.set_step(0, 10)
    assert matrix.exact.sum() == 8 and matrix.exact[5]
    matrix.weight.data[3, 5] = 0
    matrix.weight.data[3, 6] = 20
    objective.set_step(9, 10)
    # One column is left, by the values at step 0.
    assert matrix.exact.tolist() == [column == 5 for column in range(32)]
    objective.set_step(10, 10)
    assert not matrix.exact.any() and objective.largest[name][6] < 1


def test_foreign_model_keeps_its_weights(inputs, tmp_path):
    """`--init` loads a folder without rounding into the ternary architecture."""
    plain = Decoder(PLAIN)
    initialize(plain, 2)
    export.write(tmp_path / "hf", PLAIN, plain.state_dict(), inputs[0] / "tokenizer")
    assert export.read_config(tmp_path / "hf") == PLAIN
    student = Decoder(replace(PLAIN, ternary=Ternary()))
    export.load(student, tmp_path / "hf")
    assert all(torch.equal(one, student.state_dict()[name]) for name, one in plain.state_dict().items())
