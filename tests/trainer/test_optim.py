"""The schedule, Muon, decay, and accumulation over micro-batches."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.conftest import TINY
from trainer.config import MuonConfig, OptimizerConfig, ScheduleConfig
from trainer.loop import accumulate
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer, learning_rate_scale, momentum_at, orthogonalize, orthogonalized


def tiny_model() -> Decoder:
    model = Decoder(TINY)
    initialize(model, 1)
    return model


def test_learning_rate_warms_up_stays_and_decays_to_its_end():
    schedule = ScheduleConfig(warmup_steps=4, decay=0.5, final=0.1)
    rates = [learning_rate_scale(schedule, step, 20) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[4:11]) == {1.0}
    assert rates[11:] == sorted(rates[11:], reverse=True)
    assert rates[-1] == pytest.approx(0.1 + 0.9 * 0.1)
    cosine = replace(schedule, kind="cosine")
    assert learning_rate_scale(cosine, 15, 20) == pytest.approx(0.55)
    assert learning_rate_scale(replace(schedule, decay=0.0), 19, 20) == 1.0


def test_orthogonalized_matrices_have_singular_values_near_one():
    for shape in ((3, 24, 40), (2, 40, 24)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape, generator=torch.Generator().manual_seed(2))))
        assert float(values.min()) > 0.5
        assert float(values.max()) < 1.3


def test_polar_express_maps_small_singular_values_closer_to_one():
    small = torch.logspace(-3, 0, 24, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    sides = [torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0] for size in (24, 40)]
    matrix = (sides[0] * small @ sides[1][:24])[None] * 3
    plain, polar = (torch.linalg.svdvals(orthogonalized(matrix, MuonConfig(polar=one))) for one in (False, True))
    assert plain.min() < 0.4 < 0.6 < polar.min() and polar.max() < 1.2


def test_rows_and_whole_updates_of_muon_get_the_asked_norms():
    stack = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 8)[:, None]
    plain, equal = (orthogonalized(stack, MuonConfig(polar=True, equal_rows=one)) for one in (False, True))
    spread = [float(one.norm(dim=2).max() / one.norm(dim=2).min()) for one in (plain, equal)]
    assert spread[0] > 2 > 1.5 > spread[1]
    full = orthogonalized(stack, MuonConfig(full_norm=True))
    assert torch.allclose(full.norm(dim=(1, 2)), torch.full((2,), 8**0.5))


def test_momentum_of_muon_rises_with_the_steps_and_falls_with_the_rate():
    muon = MuonConfig(momentum=0.97, first_momentum=0.85, last_momentum=0.9, momentum_steps=4)
    scales = (0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0)
    found = [round(momentum_at(muon, step, scale), 6) for step, scale in enumerate(scales)]
    assert found == [0.85, 0.88, 0.91, 0.94, 0.97, 0.935, 0.9]


def test_neurons_of_an_update_become_equal_and_cautious_decay_spares_growing_weights():
    muon = MuonConfig(neurons=0.9, cautious=True)
    model = tiny_model()
    optimizer = Optimizer(model, OptimizerConfig(lr=0.0, muon_lr=0.02, muon_decay=1.0, muon=muon))
    parameter = model.model.layers[0].mlp.up_proj.weight
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        parameter.fill_(1.0)
    for _ in range(3):
        before = parameter.detach().clone()
        for one in model.parameters():
            one.grad = torch.randn(one.shape, generator=generator)
        parameter.grad[5] *= 1e-3
        optimizer.step(1.0)
    change = parameter.detach() - before
    grows, shrinks = change > 0, change < 0
    assert grows.any() and shrinks.any()
    update = -(change + torch.where(shrinks, 0.02 * before, 0.0))  # Without the decay.
    rows = update.norm(dim=1)
    assert rows.max() / rows.min() < 2  # about 1000 without the variant, because of row 5
    assert change[grows].min() > 0 and (update[shrinks] > -1e-6).all()
    assert optimizer.tensors()["neurons:model.layers.0.mlp.up_proj.weight"].shape == (64, 1)


@pytest.mark.parametrize("muon_lr", [0.0, 0.02])
def test_only_matrices_decay_and_state_round_trips(muon_lr):
    model = tiny_model()
    optimizer = Optimizer(model, OptimizerConfig(lr=0.01, muon_lr=muon_lr, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1.0)
    for name, parameter in model.named_parameters():
        rate = muon_lr if muon_lr and parameter.dim() == 2 and ".layers." in name else 0.01
        expected = before[name] * (1 - 0.5 * rate) if parameter.dim() == 2 else before[name]
        assert torch.allclose(parameter, expected, atol=1e-7), name
    state = {key: value.clone() for key, value in optimizer.tensors().items()}
    fresh = Optimizer(model, optimizer.config)
    fresh.load(state)
    assert fresh.tensors().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in fresh.tensors().items())


@pytest.mark.parametrize(("progress", "left"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
@pytest.mark.parametrize("cautious", [False, True])
def test_decay_of_muon_falls_to_zero_and_follows_the_rate_of_tall_matrices(progress, left, cautious):
    model = tiny_model()
    muon = MuonConfig(decay_to_zero=True, cautious=cautious)
    optimizer = Optimizer(model, OptimizerConfig(lr=0.01, muon_lr=0.02, weight_decay=0.5, muon=muon))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1.0, progress)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and ".layers." in name:
            faster = max(1, parameter.shape[0] / parameter.shape[1]) ** 0.5
            assert torch.allclose(parameter, before[name] * (1 - 0.5 * 0.02 * left * faster), atol=1e-7), name


def test_adamw_equals_pytorch():
    ours, theirs, config = tiny_model(), tiny_model(), OptimizerConfig(lr=0.01, weight_decay=0.5)
    optimizer = Optimizer(ours, config)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": 0.5},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        optimizer.step(1.0)
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_accumulated_gradients_equal_those_of_the_large_batch_under_masking():
    chance = np.random.default_rng(4)
    ids = chance.integers(0, TINY.vocab_size, (4, 24))
    targets = np.where(chance.random((4, 24)) < 0.4, -1, np.roll(ids, -1, 1))
    targets[1, 3:] = -1  # Rows count very different numbers of tokens.
    losses, grads = [], []
    for micro_rows in (4, 1, 2):
        model = tiny_model()
        batch, objective = {"ids": ids, "targets": targets}, CrossEntropy()
        losses.append(float(accumulate(model, batch, micro_rows, objective.loss_divisor(batch), objective)["loss"]))
        grads.append([p.grad for p in model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) == pytest.approx(losses[2], rel=1e-5)
    assert losses[0] == pytest.approx(math.log(TINY.vocab_size), rel=0.1)
    for whole, *parts in zip(*grads, strict=True):
        assert all(torch.allclose(whole, part, rtol=1e-4, atol=1e-6) for part in parts)


def gradients(model: Decoder, step: int) -> None:
    chance = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=chance)


def test_adamw_equals_pytorch_bit_by_bit_and_continues_from_a_state():
    config = OptimizerConfig(lr=0.01, embed_lr=0.03, weight_decay=0.1)
    ours, theirs = tiny_model(), tiny_model()
    optimizer = Optimizer(ours, config)
    peers = [
        {
            "params": [dict(theirs.named_parameters())[optimizer.names[one]] for one in group.parameters],
            "lr": group.lr,
            "weight_decay": group.decay,
        }
        for group in optimizer.adamw
    ]
    peer = torch.optim.AdamW(peers, betas=config.betas, eps=config.eps, fused=True)
    for step in range(6):
        gradients(ours, step)
        gradients(theirs, step)
        optimizer.step(1.0)
        peer.step()
        if step == 2:  # As from a checkpoint.
            state = {name: value.clone() for name, value in optimizer.tensors().items()}
            optimizer = Optimizer(ours, config)
            optimizer.load(state)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


STEP = """
import sys
import torch
from tests.trainer.test_optim import gradients, tiny_model
from trainer.config import OptimizerConfig
from trainer.model.decoder import initialize, uninitialized_decoder
from trainer.optim import Optimizer

model = uninitialized_decoder(tiny_model().config, device="cpu")
initialize(model, 1)
uninitialized_decoder(model.config)
optimizer = Optimizer(model, OptimizerConfig(lr=0.01))
gradients(model, 0)
optimizer.step(1.0)
print(*(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor", "sympy")))
"""


@pytest.mark.process
def test_new_model_and_first_step_import_no_compiler():
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
