"""Block diffusion: the inputs of training, the loss, and decoding compared with a slow reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from packs.blocks.trainer import block_attention
from packs.blocks.trainer.block_attention import dense, views
from packs.blocks.trainer.block_decoding import Decoding
from packs.blocks.trainer.block_likelihood import block_nats
from packs.blocks.trainer.objective import BlockDiffusion, sequence, with_masks
from tests.trainer.model.test_model import LLAMA, QWEN3, random_model
from trainer.model.decoder import Decoder
from trainer.model.generate import generate
from trainer.records.model_config import BlocksConfig

SIZE = 8
BLOCKS = BlocksConfig(block_size=SIZE, sub_block_size=4, mask_id=511)
LENGTH = 48


def rows(seed: int = 1) -> dict[str, torch.Tensor]:
    """Return three rows: answers with arbitrary begin and end, blocks without an answer, a row without an answer."""
    chance = np.random.default_rng(seed)
    ids = chance.integers(0, 500, (3, LENGTH))
    learnt = np.zeros(ids.shape, bool)
    for row, start, end in ((0, 5, 16), (0, 26, 32), (1, 1, 3), (1, 40, 48)):
        learnt[row, start:end] = True
    targets = np.full(ids.shape, -1)
    targets[:, :-1] = np.where(learnt[:, 1:], ids[:, 1:], -1)
    batch = with_masks(ids, targets, SIZE, chance)
    return {name: torch.from_numpy(one) for name, one in batch.items()}


def loss_of_four_lengths(model: Decoder, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss as the sources compute it: per view a row [noisy | clean], a plain mask, every block copied."""
    ids, targets = batch["ids"], batch["targets"]
    length = ids.shape[1]
    known = torch.full_like(ids, -1)
    known[:, 1:] = targets[:, :-1]
    at = torch.arange(2 * length)
    noisy, block = at < length, at % length // SIZE
    same, clean = noisy[:, None] == noisy[None, :], ~noisy[None, :]
    earlier = clean & noisy[:, None] & (block[:, None] > block[None, :])
    causal = clean & ~noisy[:, None] & (block[:, None] >= block[None, :])
    allowed = (same & (block[:, None] == block[None, :])) | earlier | causal
    position = (at % length).expand(len(ids), -1)
    place = model.positions(position, allowed[None, None].expand(len(ids), 1, -1, -1))
    total = torch.zeros(())
    for view in (1, 0):
        hidden_ones = (known != -1) & (batch["masked"] == view)
        seen = torch.where(hidden_ones, BLOCKS.mask_id, ids)
        states = model.hidden(torch.cat((seen, ids), dim=1), at=place)
        # The first token of a block is predicted by the clean token before the block.
        first = torch.arange(length) % SIZE == 0
        before = torch.where(first[None, 1:, None], states[:, length : 2 * length - 1], states[:, : length - 1])
        logits = F.linear(before, model.head)
        label = torch.where(hidden_ones, ids, -1)[:, 1:]
        total = total + F.cross_entropy(logits.flatten(0, 1), label.flatten(), ignore_index=-1, reduction="sum")
    return total


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_rows_of_three_lengths_give_the_loss_and_gradients_of_four(config):
    model, batch = random_model(config), rows()
    found, reference = BlockDiffusion(BLOCKS).loss(model, batch)[0], loss_of_four_lengths(model, batch)
    assert float(found.detach()) == pytest.approx(float(reference.detach()), rel=1e-6)
    gradients = [torch.autograd.grad(one, list(model.parameters())) for one in (found, reference)]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_attention_of_views_equals_the_plain_mask_for_every_kernel(monkeypatch):
    torch.manual_seed(1)
    batch = rows()
    one = sequence(batch, BLOCKS)
    mask = views(one.numbers, SIZE, LENGTH)
    length = one.ids.shape[1]
    q, k, v = (torch.randn(3, heads, length, 16, requires_grad=True) for heads in (4, 2, 2))
    wanted = F.scaled_dot_product_attention(q, k, v, dense(mask), enable_gqa=True)
    found = block_attention.attend(q, k, v, mask)
    assert "BlockedAttention" in found.grad_fn.name()
    monkeypatch.setattr(block_attention, "SQUARES", 1)
    too_large = block_attention.attend(q, k, v, mask)
    assert "BlockedAttention" not in too_large.grad_fn.name()
    slope = torch.randn_like(wanted)
    theirs = torch.autograd.grad(wanted, (q, k, v), slope)
    for ours in (found, too_large):
        assert torch.allclose(ours, wanted, atol=1e-5)
        for mine, other in zip(torch.autograd.grad(ours, (q, k, v), slope), theirs, strict=True):
            assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.slow
def test_block_mask_of_a_gpu_equals_the_plain_mask():
    from torch.nn.attention.flex_attention import create_mask

    one = sequence(rows(), BLOCKS)
    flex = block_attention._block_mask(one.numbers, SIZE, LENGTH)
    length = one.ids.shape[1]
    plain = create_mask(flex.mask_mod, len(one.numbers), 1, length, length, device="cpu")
    assert torch.equal(plain, dense(views(one.numbers, SIZE, LENGTH)))


def test_every_target_token_is_predicted_once_in_its_masked_view():
    batch = rows()
    one = sequence(batch, BLOCKS)
    wanted = batch["ids"][:, 1:][batch["targets"][:, :-1] != -1].sort().values
    found = one.targets[one.targets != -1].sort().values
    assert torch.equal(found, wanted)
    clean, first, second = one.ids[:, :LENGTH], *one.ids[:, LENGTH:].chunk(2, dim=1)
    assert not (clean == BLOCKS.mask_id).any()
    assert not ((first == BLOCKS.mask_id) & (second == BLOCKS.mask_id)).any()
    predicted = one.targets[:, LENGTH:]
    assert (one.ids[:, LENGTH:][:, 1:][predicted[:, :-1] != -1] == BLOCKS.mask_id).all()


def decoded_slowly(model: Decoder, prompt: list[int], stop: set[int], max_new: int) -> tuple[list[int], int]:
    """Return one answer and its passes: each pass rereads all tokens under a plain mask, and decides one token."""
    config, ids, told = model.config.blocks, list(prompt), []
    size, passes = config.block_size, 0
    while len(told) < max_new:
        block = len(ids) // size
        line = ids + [config.mask_id] * ((block + 1) * size - len(ids))
        while config.mask_id in line:
            passes += 1
            number = torch.arange(len(line)) // size
            mask = (number[None, :] <= number[:, None])[None, None]
            at = model.positions(torch.arange(len(line))[None], mask)
            logits = F.linear(model.hidden(torch.tensor([line]), at=at), model.head)[0, :, : config.mask_id]
            shares = logits.softmax(dim=-1)
            first = line.index(config.mask_id)
            end = next((n for n in range(len(prompt), len(line)) if line[n] in stop), len(line))
            last = (first // config.sub_block_size + 1) * config.sub_block_size
            places = [n for n in range(first, min(last, end)) if line[n] == config.mask_id]
            best = max(places, key=lambda n: float(shares[n - 1].max()), default=-1)
            for n in places:
                if shares[n - 1].max() > config.threshold or n == best or n % size == 0:
                    line[n] = int(shares[n - 1].argmax())
            final = line[len(prompt) : line.index(config.mask_id) if config.mask_id in line else len(line)]
            stopped = [n for n, token in enumerate(final) if token in stop]
            if stopped or len(final) >= max_new:
                return final[: stopped[0] + 1] if stopped else final[:max_new], passes
        ids, told = line, line[len(prompt) :]
        if len(ids) + size > model.config.max_position_embeddings:
            break
    return told[:max_new], passes


@pytest.mark.parametrize("threshold", [0.02, 1.0])
def test_decoding_equals_a_slow_reference_in_as_many_passes(threshold):
    blocks = replace(BLOCKS, threshold=threshold)
    model = random_model(replace(QWEN3, blocks=blocks))
    chance = np.random.default_rng(2)
    prompts = [chance.integers(0, 500, size).tolist() for size in (3, 8, 13, 21, 40)]
    stop = set(range(60))  # Often enough.
    with torch.inference_mode():
        wanted = [decoded_slowly(model, one, stop, 30) for one in prompts]
    decoding = Decoding(model, prompts, stop, 30)
    answers = [[token for found in steps for token in found] for steps in zip(*decoding, strict=True)]
    assert answers == [one for one, _ in wanted]
    assert decoding.passes == [count for _, count in wanted]
    assert {len(one) for one in answers} != {30}
    if threshold == 1.0:
        assert all(passes >= 0.4 * len(one) for one, passes in wanted)
    alone = [generate(model, [one], stop, 30)[0] for one in prompts]
    assert alone == [one[:-1] if one[-1] in stop else one for one in answers]
    assert generate(model, prompts, stop, 30) == alone


def test_decoding_ends_at_the_last_position_and_repeats_with_the_same_seed():
    model = random_model(replace(QWEN3, max_position_embeddings=60, blocks=BLOCKS))
    prompts = [list(range(7)), list(range(50)), list(range(58))]
    assert [len(one) for one in generate(model, prompts, (), 1000)] == [49, 6, 0]  # Seven whole blocks.
    drawn = [generate(model, prompts, (), 20, temperature=1.0, top_k=5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert generate(model, prompts, (), 20, temperature=1.0, top_k=1) == generate(model, prompts, (), 20)


def test_token_costs_equal_left_to_right_decoding():
    model = random_model(replace(QWEN3, blocks=BLOCKS))
    ids = torch.from_numpy(np.random.default_rng(4).integers(0, 500, (2, 22)))
    targets = torch.full((2, 21), -1)
    for row, at in ((0, 2), (0, 7), (0, 8), (0, 20), (1, 3), (1, 15)):
        targets[row, at] = ids[row, at + 1]
    found = block_nats(model, ids[:, :-1], targets)
    assert (found[targets == -1] == 0).all()
    for row, at in (targets != -1).nonzero().tolist():
        block = (at + 1) // SIZE
        line = ids[row, : at + 1].tolist() + [BLOCKS.mask_id] * ((block + 1) * SIZE - at - 1)
        number = torch.arange(len(line)) // SIZE
        place = model.positions(torch.arange(len(line))[None], (number[None, :] <= number[:, None])[None, None])
        with torch.inference_mode():
            logits = F.linear(model.hidden(torch.tensor([line]), at=place), model.head)[0, at]
        wanted = F.cross_entropy(logits, ids[row, at + 1])
        assert found[row, at] == pytest.approx(float(wanted), abs=1e-4)
