"""Packed documents, recomputation, sliced logits, 8-bit products, compiled blocks."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.conftest import BASE
from tests.trainer.model.test_model import IDS, LLAMA, QWEN3, random_model
from tests.world import ROOT
from trainer import speed
from trainer.config import PhaseConfig
from trainer.device import Machine
from trainer.errors import Refused
from trainer.model import attention, float8, losses, token_losses
from trainer.model.decoder import Decoder
from trainer.model.losses import ROWS_CPU, Shape

LENGTHS = ((7, 1, 20, 12), (40,))  # Of the documents in the two rows of IDS.
DOCUMENTS = torch.stack([torch.cat([torch.full((n,), k) for k, n in enumerate(row)]) for row in LENGTHS])
CPU = Machine(torch.device("cpu"), torch.float32, 1)


def gradients(model: Decoder, *arrays: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.loss(*arrays).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_packed_row_gives_every_document_its_result_alone(config):
    model = random_model(config)
    packed = model.hidden(IDS, documents=DOCUMENTS)
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            part = slice(start, start + length)
            assert (packed[row, part] - model.hidden(IDS[row : row + 1, part])[0]).abs().max() < 1e-5
            start += length
    assert (packed[0] - model.hidden(IDS)[0]).abs().max() > 1e-2  # And not the result with visible neighbors.


def test_gradient_of_a_packed_row_is_the_sum_over_its_documents():
    model, targets = random_model(QWEN3), IDS.roll(-1, 1)
    whole = gradients(model, IDS[:1], targets[:1], DOCUMENTS[:1])
    model.zero_grad()
    start = 0
    for length in LENGTHS[0]:
        part = slice(start, start + length)
        model.loss(IDS[:1, part], targets[:1, part]).backward()
        start += length
    for name, parameter in model.named_parameters():
        assert torch.allclose(whole[name], parameter.grad, rtol=1e-3, atol=1e-5), name


def test_evaluation_makes_no_gradient_and_has_the_bits_of_training(monkeypatch):
    model, targets, asked, real = random_model(QWEN3), IDS.roll(-1, 1), [], losses.of_slice
    learnt = model.loss(IDS, targets)
    monkeypatch.setattr(losses, "of_slice", lambda *words: asked.append(words[-1]) or real(*words))
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            assert torch.equal(model.loss(IDS, targets), learnt)
    assert asked == [False, False, True]


@pytest.mark.slow
def test_flex_attention_and_the_masked_kernel_are_equal():
    """Compare the forward pass, which runs on any machine; a GPU test below compares the backward pass."""
    torch.manual_seed(1)
    q = torch.randn(2, 4, 40, 16)
    k, v = (torch.randn(2, 2, 40, 16) for _ in range(2))
    one, other = (attention.attend(q, k, v, attention.documents_mask(DOCUMENTS, flex)) for flex in (False, True))
    assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("length", [40, 301])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_in_parts_and_its_gradients_equal_the_kernel(length, kv_heads, packed):
    torch.manual_seed(1)
    qkv = [torch.randn(2, heads, length, 16, requires_grad=True) for heads in (4, kv_heads, kv_heads)]
    documents = torch.randint(0, 2, (2, length)).cumsum(1) // 4
    mask = attention.documents_mask(documents, flex=False) if packed else None
    found = attention.attend(*qkv, mask)
    assert "PartwiseAttention" in found.grad_fn.name()
    expected = F.scaled_dot_product_attention(*qkv, mask, is_causal=not packed, enable_gqa=True)
    slope = torch.randn_like(expected)
    pairs = zip(*(torch.autograd.grad(one, qkv, slope) for one in (found, expected)), strict=True)
    for one, other in ((found, expected), *pairs):
        assert torch.allclose(one, other, atol=1e-5)


def test_attention_in_parts_rounds_in_bfloat16_no_more_than_matrix_products():
    """Use ordinary scores (at most 5): the error is at most three times the error of the kernel with fp32 scores."""
    torch.manual_seed(1)
    qkv = [torch.randn(2, 4, 300, 64).bfloat16().requires_grad_() for _ in range(3)]
    truth = F.scaled_dot_product_attention(*(one.double() for one in qkv), is_causal=True)
    error = (attention.attend(*qkv, None) - truth).norm() / truth.norm()
    kernel = (F.scaled_dot_product_attention(*qkv, is_causal=True) - truth).norm() / truth.norm()
    assert kernel < error < 3 * kernel < 0.01


def test_rows_with_large_score_matrices_use_the_kernel():
    q = torch.zeros(2, 8, 1025, 4, requires_grad=True)
    assert attention.SQUARES < 2 * 8 * 1025**2
    assert "PartwiseAttention" not in attention.attend(q, q, q, None).grad_fn.name()


@pytest.mark.gpu
@pytest.mark.process
def test_packed_documents_on_a_gpu_give_the_loss_and_gradients_of_the_cpu():
    model, targets = random_model(QWEN3), IDS.roll(-1, 1)
    expected = gradients(model, IDS, targets, DOCUMENTS)
    found = gradients(model.cuda(), IDS.cuda(), targets.cuda(), DOCUMENTS.cuda())
    for name, one in expected.items():
        assert torch.allclose(one, found[name].cpu(), rtol=1e-2, atol=1e-3), name


@pytest.mark.parametrize(("softcap", "z_loss"), [(0.0, 1e-3), (5.0, 0.0), (5.0, 1e-2)])
def test_z_loss_and_soft_cap_have_the_gradients_of_autograd(softcap, z_loss):
    model, targets = random_model(replace(LLAMA, logit_softcap=softcap)), IDS.roll(-1, 1).clone()
    targets[:, ::3] = -1
    model.shape = replace(model.shape, z_loss=z_loss)
    found = gradients(model, IDS, targets)
    told = model.loss(IDS, targets)
    model.zero_grad()
    logits = model(IDS).flatten(0, 1)
    nats = F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum")
    squares = logits[targets.flatten() >= 0].logsumexp(dim=-1).square().sum()
    (nats + z_loss * squares).backward()
    assert torch.allclose(told, nats, rtol=1e-5)  # The reported loss is cross entropy alone.
    assert not softcap or logits.abs().max() < softcap
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=1e-3, atol=1e-4), name


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any result of an operation."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor):
                self.most = max(self.most, one.numel())
        return result


@pytest.mark.parametrize("kind", ["nats", "each", "beside a teacher"])
def test_gradient_of_a_16_bit_head_is_rounded_once_after_all_slices(kind):
    torch.manual_seed(7)
    hidden, targets = torch.randn(3 * ROWS_CPU + 5, 32).bfloat16(), torch.randint(0, 40, (3 * ROWS_CPU + 5,))
    grads = []
    for dtype in (torch.bfloat16, torch.float32):
        head = (0.3 * torch.randn(40, 32, generator=torch.Generator().manual_seed(1))).bfloat16().to(dtype)
        head.requires_grad_()
        if kind == "nats":
            losses.SummedCrossEntropy.apply(hidden, head, targets, Shape()).backward()
        elif kind == "each":
            token_losses.token_logprobs(hidden, head, targets, Shape()).sum().backward()
        else:
            teacher = token_losses.Teacher(hidden, head.detach().float() * 2)
            token_losses.sliced_kl(hidden, head, targets, teacher, torch.ones(2), 1.0)[0].backward()
        grads.append(head.grad.float())
    assert torch.equal(grads[0], grads[1].bfloat16().float()) and grads[0].abs().sum() > 1


@pytest.mark.slow
def test_no_tensor_is_as_large_as_the_logits():
    config = replace(LLAMA, vocab_size=4000, max_position_embeddings=2048)
    model, ids = random_model(config), torch.randint(0, 4000, (2, 2048), generator=torch.Generator().manual_seed(1))
    with Largest() as seen:
        model.loss(ids, ids.roll(-1, 1)).backward()
    assert seen.most == ROWS_CPU * config.vocab_size < ids.numel() * config.vocab_size / 3


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "packed"])
def test_recomputed_blocks_have_bit_equal_gradients_and_keep_less_memory(documents):
    model, arrays = random_model(QWEN3), [IDS, IDS.roll(-1, 1), *([] if documents is None else [documents])]
    found, kept = [], []
    for recompute in (False, True):
        model.recompute = recompute
        sizes: dict[int, int] = {}

        def pack(one: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            return one

        found.append(gradients(model, *arrays))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            hidden = model.hidden(IDS)
        kept.append(sum(sizes.values()))
        del hidden
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())
    assert kept[1] < kept[0] / 2


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += str(func) in ("aten.mm.default", "aten.addmm.default")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["whole", "packed"])
def test_kept_products_are_not_recomputed_and_gradients_stay_bit_equal(documents):
    model, arrays = random_model(QWEN3), [IDS, IDS.roll(-1, 1), *([] if documents is None else [documents])]
    found, made = [], []
    for recompute, keep_products in ((False, False), (True, True), (True, False)):
        config: PhaseConfig = replace(BASE, model=QWEN3, recompute=recompute, keep_products=keep_products)
        with speed.training_setup(model, replace(config, compile="never"), CPU), Products() as products:
            found.append(gradients(model, *arrays))
        made.append(products.count)
    assert all(torch.equal(one, other[name]) for name, one in found[0].items() for other in found[1:])
    # Of the seven products of each block, the backward pass does not need the last.
    assert made[0] == made[1] == made[2] - 6 * QWEN3.num_hidden_layers


def test_eight_bit_products_are_close_and_their_gradients_match_the_rounded_values():
    torch.manual_seed(2)
    x = torch.randn(4, 32, 64).bfloat16().requires_grad_()
    weight = torch.randn(48, 64, requires_grad=True)
    y = float8.linear(x, weight)
    slope = torch.randn(4, 32, 48).bfloat16()
    y.backward(slope)
    exact = x.detach().float() @ weight.detach().t()
    assert y.dtype == torch.bfloat16 and x.grad.shape == x.shape and weight.grad.dtype == torch.float32
    for found, expected in (
        (y, exact),
        (x.grad, slope.float() @ weight.detach()),
        (weight.grad, slope.float().flatten(0, 1).t() @ x.detach().float().flatten(0, 1)),
    ):
        error = (found.float() - expected).norm() / expected.norm()
        assert 0.001 < error < 0.08  # Rounded to 3 bits and 2, not to 8.
    # One product again, by hand, from the 8-bit numbers.
    (a, a_scale), (b, b_scale) = (float8.quantised(one.detach(), torch.float8_e4m3fn) for one in (x, weight))
    by_hand = (a.float() @ b.float().t() * a_scale * b_scale).bfloat16()
    assert torch.allclose(by_hand.float(), y.detach().float(), rtol=0.02, atol=0.05)


def test_weight_is_converted_to_8_bits_once_a_step_and_again_after_a_change(monkeypatch):
    torch.manual_seed(2)
    x, weight = torch.randn(32, 64).bfloat16().requires_grad_(), torch.randn(48, 64, requires_grad=True)
    held, made = float8.Weight.from_tensor(weight), []
    quantised = float8.quantised
    monkeypatch.setattr(float8, "quantised", lambda *about: made.append(len(about[0])) or quantised(*about))

    def products(*given) -> list[torch.Tensor]:
        y = float8.linear(x, weight, *given)
        return [y, *torch.autograd.grad(y.sum(), (x, weight))]

    assert all(torch.equal(one, other) for one, other in zip(products(held), products(), strict=True))
    assert made.count(48) == 1  # By the product without a given matrix.
    with torch.no_grad():
        weight.mul_(2)
    place = held.forward_layout.data_ptr()
    held.update_from(weight)
    assert held.forward_layout.data_ptr() == place and torch.equal(products(held)[0], products()[0])


def test_machine_without_the_units_or_the_compiler_is_reported(monkeypatch):
    model = Decoder(BASE.model)
    with (
        pytest.raises(Refused, match="float8 needs an NVIDIA GPU"),
        speed.training_setup(model, replace(BASE, dtype="float8"), CPU),
    ):
        pass
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Refused, match="compile=always is set, but a C\\+\\+ compiler is missing .no-such-compiler"):
        speed.is_compiled(replace(BASE, compile="always"), CPU)
    assert not speed.is_compiled(replace(BASE, steps=10**9), CPU)  # Compilation would be worthwhile.


def test_compilation_is_chosen_for_long_phases_only(monkeypatch):
    monkeypatch.setattr(speed, "compiler_problem", lambda kind: "")  # On any machine.
    assert not speed.is_compiled(BASE, CPU)
    assert speed.is_compiled(replace(BASE, steps=10**9), CPU)
    assert not speed.is_compiled(replace(BASE, steps=10**9, compile="never"), CPU)


def test_model_is_restored_after_training():
    model = Decoder(BASE.model)
    config = replace(BASE, recompute=True, optimizer=replace(BASE.optimizer, z_loss=0.1))
    with speed.training_setup(model, config, CPU):
        assert model.recompute and model.shape == Shape(z_loss=0.1)
    assert not model.recompute and model.shape == Shape()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("document_masks", "recompute"), [(False, False), (True, False), (False, True)], ids=["whole", "packed", "kept"]
)
def test_compiled_blocks_are_deterministic_and_equal_eager_up_to_rounding(document_masks, recompute):
    config: PhaseConfig = replace(BASE, model=QWEN3, compile="always", document_masks=document_masks)
    config = replace(config, recompute=recompute, keep_products=recompute)
    model, arrays = random_model(QWEN3), [IDS, IDS.roll(-1, 1), *([DOCUMENTS] if document_masks else [])]
    eager = gradients(model, *arrays)
    found = []
    for _ in range(2):
        with speed.training_setup(model, config, CPU):
            assert all(block._compiled_call_impl is not None for block in model.model.layers)
            found += [gradients(model, *arrays), gradients(model, *arrays)]
    for name, one in eager.items():
        assert torch.allclose(one, found[0][name], rtol=1e-3, atol=1e-4), name
        assert all(torch.equal(found[0][name], again[name]) for again in found[1:]), name
    assert torch._dynamo.utils.counters["graph_break"] == {}


@pytest.mark.process
def test_kernels_of_a_killed_process_are_not_reused(tmp_path, monkeypatch):
    monkeypatch.setenv(speed.KERNELS, "elsewhere")
    kernels = tmp_path / "kernels"
    with speed.compile_cache(kernels):
        assert os.environ[speed.KERNELS] == str(kernels)
        (kernels / "whole.so").touch()
    assert os.environ[speed.KERNELS] == "elsewhere"
    with speed.compile_cache(kernels):
        assert (kernels / "whole.so").exists()
    die = "import os, sys; from pathlib import Path; from trainer.speed import compile_cache\n"
    die += "with compile_cache(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", die, str(kernels)], cwd=ROOT).returncode == -9
    with speed.compile_cache(kernels):
        assert not (kernels / "whole.so").exists()


def test_mask_with_visible_later_tokens_disables_the_causal_kernel():
    """Blocks of 48 of 256 tokens, as in block diffusion: quarters of a row end inside a block."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 2, 256, 16, requires_grad=True) for _ in range(3))
    block = torch.arange(256) // 48
    mask = (block[:, None] >= block[None, :]).expand(2, 1, -1, -1)
    found = attention.attend(q, k, v, mask, is_causal=False)
    truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask)
    assert (
        "PartwiseAttention" not in found.grad_fn.name()
        and "PartwiseAttention" in attention.attend(q, k, v, None).grad_fn.name()
    )
    assert (found - truth).abs().max() < 1e-5
    whole = attention.attend(q, k, v, None, is_causal=False)  # Every token sees all tokens.
    assert (whole - F.scaled_dot_product_attention(q, k, v)).abs().max() < 1e-6


def test_given_positions_and_masks_are_used():
    """A row repeated in a sequence, with the second part seeing only itself, gives the result of the row alone."""
    model, ids = random_model(QWEN3), IDS[:1, :24]
    index = torch.arange(24).repeat(2)[None]
    half = torch.arange(48) // 24
    causal = index[0][:, None] >= index[0][None, :]
    at = model.positions(index, ((half[:, None] == half[None, :]) & causal)[None, None])
    both, (first, left) = model.hidden(ids.repeat(1, 2), at=at, capture=(0, QWEN3.num_hidden_layers))
    alone = model.hidden(ids)
    assert (both[:, 24:] - alone).abs().max() < 1e-5
    assert torch.equal(first[:, :24], model.model.embed_tokens(ids)) and torch.equal(model.model.norm(left), both)
