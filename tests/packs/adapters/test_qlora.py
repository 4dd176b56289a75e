"""QLoRA: matrices in 4 bits compared with bitsandbytes under peft; training, resume, merge and memory."""

import json
from dataclasses import asdict, replace
from types import ModuleType

import pytest
import torch

from data.config import ConfigError, Input, Persona
from flows.specs.work import phase_changes
from packs.adapters.control.flags import AdapterFlags
from packs.adapters.records.lora_config import AdapterPhaseConfig, sides, with_adapter
from packs.adapters.trainer import four_bit
from packs.adapters.trainer.lora import Lora
from tests.packs.adapters.test_lora import BASE, adapted, attached, trained_whole_and_in_parts
from tests.packs.adapters.test_peft import OTHER, STEPS, in_transformers
from tests.packs.adapters.test_peft import peft as peft
from tests.trainer.conftest import TINY, finish, tiny
from tests.trainer.model.test_model import IDS, LLAMA, QWEN2, QWEN3, random_model
from tests.trainer.parallel.test_ranks import losses, spread
from tests.trainer.parallel.test_ranks import port as port
from tests.trainer.test_phases import run
from tests.trainer.test_rl import config_of
from trainer import memory
from trainer.checkpoints.checkpoint import open_final
from trainer.config import load_phase
from trainer.errors import Refused
from trainer.loop import accumulate
from trainer.model import changes, export
from trainer.model.decoder import Decoder, Linear
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer
from trainer.plan import TrainingRequest, recipe
from trainer.plan.phase_needs import needs_of
from trainer.recipes import PROFILES

QLORA = {"rank": 4, "alpha": 8.0, "kind": "qlora"}
CPU = torch.device("cpu")


def real(test):
    """Mark a test with bitsandbytes, whose environment a process builds."""
    return pytest.mark.nightly(pytest.mark.process(test))


def round_to_4_bits(model: Decoder, config: AdapterPhaseConfig, std: float = 0.0) -> Decoder:
    """Return a model in 4 bits with an adapter, with B drawn from `std`."""
    Lora().compress(model.requires_grad_(False), config, CPU)
    return attached(model, config, std)


def test_flag_qlora_selects_matrices_in_4_bits_and_their_environment():
    flags = phase_changes([AdapterFlags(adapter="qlora")])
    who = Persona(name="Bosun", maker="a crew", purpose="to answer")
    nodes = recipe(TrainingRequest(phases=("mid", "sft"), persona=who, changes=flags))
    config = nodes["sft"].spec
    assert (config.adapter.kind, config.adapter.rank, config.optimizer.lr) == ("qlora", 32, 1e-3)
    assert load_phase(json.loads(json.dumps(asdict(config))), "spec") == config
    assert needs_of(config).environments(config, "cpu") == ("bitsandbytes",)
    plain = with_adapter(AdapterFlags(adapter="lora"), nodes["base"].spec)
    assert needs_of(plain).environments(plain, "cpu") == ()
    rl = with_adapter(AdapterFlags(adapter="qlora"), config_of("rl"))
    assert needs_of(rl).environments(rl, "cpu") == ("bitsandbytes",)
    with pytest.raises(ConfigError, match="adapter is qlora; vLLM answers with .*unrounded.* Set --engine embedded"):
        with_adapter(AdapterFlags(adapter="qlora"), config_of("rl", engine="vllm"))


def test_estimate_counts_a_quarter_of_the_bytes_for_matrices_in_4_bits():
    whole = PROFILES["smollm2_135m"]().phases["sft"]
    lora, qlora = (with_adapter(AdapterFlags(adapter=one), whole) for one in ("lora", "qlora"))
    matrices = [inputs * outputs for inputs, outputs in sides(whole.model).values()]
    in_blocks = whole.model.num_hidden_layers * sum(matrices)
    mine, other = memory.estimate(qlora), memory.estimate(lora)
    kept = 2 * (whole.model.num_params - in_blocks) + 2 * max(matrices)  # a product unpacks one matrix
    assert 0.25 < (mine.frozen - kept) / (2 * in_blocks) < 0.26
    assert replace(mine, frozen=0) == replace(other, frozen=0)


@pytest.mark.process
def test_failed_environment_is_an_error_in_words(monkeypatch):
    monkeypatch.setattr(four_bit, "ENVIRONMENT", "no-such-environment")
    with pytest.raises(Refused, match="need bitsandbytes: .*no-such-environment.* bitsandbytes: --adapter lora"):
        four_bit.library.__wrapped__()


@real
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_in_4_bits_computes_with_the_rounded_matrix(dtype):
    torch.manual_seed(3)
    base = Linear(192, 96, bias=True).to(dtype).requires_grad_(False)
    layer, weight = four_bit.QuantizedLinear(base, CPU), four_bit.round_to_4_bits(base.weight.data, dtype)
    x = torch.randn(2, 5, 192, dtype=dtype, requires_grad=True)
    same = x.detach().clone().requires_grad_()
    found, wanted = layer(x), torch.nn.functional.linear(same, weight, base.bias)
    assert torch.equal(found, wanted) and 0.05 < (weight - base.weight).norm() / base.weight.norm() < 0.12
    found.float().square().sum().backward()
    wanted.float().square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad)
    stored = {name: one for name, one in layer.named_buffers() if name != "levels"}  # a table of 256 numbers
    assert sum(one.nbytes for one in stored.values()) / (2 * base.weight.numel()) < 0.26
    shapes = {name: (one.shape, one.dtype) for name, one in layer.named_buffers()}
    unfilled = four_bit.QuantizedLinear(base.to("meta"), CPU)
    assert {name: (one.shape, one.dtype) for name, one in unfilled.named_buffers()} == shapes


@real
@pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_losses_of_20_steps_equal_losses_of_peft_on_the_same_model_in_4_bits(tmp_path, peft: ModuleType, shape):
    config = adapted(model=shape, sequence_len=64, adapter=QLORA)
    ours = round_to_4_bits(random_model(shape), config)
    Lora().write(tmp_path, ours, config, OTHER)
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    in_transformers(tmp_path / "m", shape, random_model(shape))
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", dtype=torch.float32, quantization_config=how, device_map="cpu"
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path, is_trainable=True).train()
    learning = [one for one in theirs.parameters() if one.requires_grad]
    rates = config.optimizer
    judge = torch.optim.AdamW(learning, lr=rates.lr, betas=rates.betas, eps=rates.eps, weight_decay=0.0)
    optimizer, found = Optimizer(ours, rates), []
    for step in range(STEPS):
        ids = torch.randint(0, shape.vocab_size, (4, 33), generator=torch.Generator().manual_seed(step % 4))
        given, wanted = ids[:, :-1], ids[:, 1:]
        judge.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(given).logits.flatten(0, 1), wanted.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, rates.grad_clip)
        judge.step()
        optimizer.zero_grad()
        batch = {"ids": given.numpy(), "targets": wanted.numpy()}
        found.append((float(accumulate(ours, batch, 4, wanted.numel(), CrossEntropy())["loss"]), loss.item()))
        optimizer.clip()
        optimizer.step(1.0)
    assert max(abs(a - b) for a, b in found) < 1e-4, found
    assert found[16][0] < found[0][0] - 0.01  # the same batch


@real
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_model_equals_the_rounded_model_with_the_adapter(tmp_path, dtype):
    config = adapted(model=QWEN3, sequence_len=64, adapter={**QLORA, "targets": ("q_proj", "down_proj")})
    apart = random_model(QWEN3)
    apart.compute_dtype = dtype
    apart = round_to_4_bits(apart.to(dtype), config, std=0.02)
    of = replace(OTHER, rounding=Lora().rounding(config, dtype))
    Lora().write(tmp_path, apart, config, of)
    changes.write_changed(tmp_path, of)
    merged = random_model(QWEN3)
    Lora().apply(merged, tmp_path)
    copy = Lora().merged(apart)
    with torch.no_grad():
        torch.testing.assert_close(copy(IDS), apart(IDS), rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 0.1)
        assert (apart(IDS) - random_model(QWEN3)(IDS)).abs().max() > 0.1
    for name, one in copy.named_parameters():
        torch.testing.assert_close(merged.get_parameter(name).to(dtype), one, rtol=1e-6, atol=1e-6)
    (tmp_path / "changed_model.json").write_text(json.dumps({**asdict(of), "rounding": "int3"}))
    with pytest.raises(Refused, match="rounding is int3; known: bfloat16, float32"):
        Lora().apply(random_model(QWEN3), tmp_path)


@real
@pytest.mark.slow
def test_qlora_is_trained_resumed_bit_for_bit_continued_and_merged(world, monkeypatch):
    assert run(world, monkeypatch, "base", tiny(steps=6)) == 0
    config = adapted("mid", adapter=QLORA)
    mid = trained_whole_and_in_parts(world, monkeypatch, config)
    assert open_final(mid).tensors("model").keys() == attached(random_model(TINY), config).learning_state().keys()
    about = changes.read_changed(mid / "hf")
    assert about.rounding in ("bfloat16", "float32")

    making = world.making("sft", mid=Input(name="mid_checkpoints/tiny", fingerprint="f" * 64), base=BASE)
    assert run(world, monkeypatch, "sft", replace(config, phase="sft"), making) == 0
    first, last = (
        json.loads((world.store / name / "tiny/metrics.jsonl").read_text().splitlines()[at])["loss"]
        for name, at in (("sft_checkpoints", 0), ("mid_checkpoints", -1))
    )
    assert first < 1.1 * last  # the phase sft has continued the adapter of mid
    whole = export.read(world.store / "base_checkpoints/tiny/hf")
    rounds = getattr(torch, about.rounding)
    wanted = four_bit.round_to_4_bits(whole.model.layers[0].mlp.up_proj.weight.data, rounds).float()
    learnt = open_final(mid).tensors("model")
    b, a = (learnt[f"model.layers.0.mlp.up_proj.lora_{one}.weight"] for one in "BA")
    Lora().apply(whole, mid / "hf")
    torch.testing.assert_close(whole.model.layers[0].mlp.up_proj.weight.data, wanted + 2.0 * b @ a)


@real
@pytest.mark.slow
def test_rl_answers_with_the_rounded_model(world, monkeypatch):
    assert run(world, monkeypatch, "base", tiny(steps=8, dtype="float32")) == 0
    config = with_adapter(AdapterFlags(adapter="qlora"), config_of("rl", beta=0.05))
    making = replace(world.making("rl", base=BASE), name="rl_checkpoints/tiny")
    assert run(world, monkeypatch, "rl", config, making) == 0
    lines = [json.loads(line) for line in (world.store / "rl_checkpoints/tiny/metrics.jsonl").read_text().splitlines()]
    assert all(one["mismatch"] < 1e-4 for one in lines)
    assert lines[0]["kl"] < 1e-6  # the reference has the same matrices in 4 bits


@real
def test_two_nodes_train_the_adapter_of_one_process_beside_matrices_in_4_bits(world, port, monkeypatch):
    assert run(world, monkeypatch, "base", tiny(steps=3, dtype="float32")) == 0
    config = adapted("mid", steps=6, rows=4, micro_rows=1, dtype="float32", adapter=QLORA)
    assert run(world, monkeypatch, "mid", config, world.making("mid", base=BASE)) == 0
    making = replace(world.making("mid", "e" * 64, base=BASE), name="mid_checkpoints/two")
    for code, words in map(finish, spread(world, config, port, making, making)):
        assert code == 0, words
    one, two = world.store / "mid_checkpoints/tiny", world.store / "mid_checkpoints/two"
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
