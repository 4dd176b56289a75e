"""A decoder with windows, value embeddings, smear, residual scales and backout: caches, packed rows, trees of answers.

`tests/packs/imports/test_nanochat_2026.py` compares the values with nanochat's own code.
"""

import json
from dataclasses import replace

import pytest
import torch

from data.config import ConfigError
from infra.errors import UsageError
from packs.speedrun.trainer.trunk import window_mask
from serve import model_kinds
from tests.trainer.conftest import TINY
from trainer import import_model
from trainer.errors import Refused
from trainer.model import export
from trainer.model.attention import DocumentBounds, attend, documents_mask, positions_in
from trainer.model.decoder import Cache, Decoder, initialize
from trainer.model.generate import generate
from trainer.model.huggingface import config_json, model_config, shapes
from trainer.objectives.shared_rows import hidden_of, pack_answers
from trainer.records.model_config import BlocksConfig, NanochatParts, Ternary
from trainer.rollouts.generator import generate_answers
from trainer.rollouts.sampling import Sampling

WHOLE = NanochatParts(windows="SSL", window=4, value_channels=6, smear_channels=8, scales=True, backout=True)
SHAPE = replace(
    TINY,
    num_hidden_layers=4,
    mlp="relu2",
    embed_norm=True,
    tie_word_embeddings=False,
    logit_softcap=15.0,
    nanochat=WHOLE,
)
IDS = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(3))
PARTS = {
    "sliding windows": NanochatParts(windows="SL", window=4),
    "value embeddings": NanochatParts(value_channels=6),
    "smear": NanochatParts(smear_channels=8),
    "scaled residuals": NanochatParts(scales=True),
    "backout": NanochatParts(backout=True),
}


def random_model(config=SHAPE) -> Decoder:
    model = Decoder(config)
    initialize(model, 5)
    generator = torch.Generator().manual_seed(6)
    for one in model.parameters():  # Also values that start at zero.
        one.data += 0.3 * torch.randn(one.shape, generator=generator) * (one.shape[-1] ** -0.5 if one.dim() > 1 else 1)
    return model.eval()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_changes_the_logits_and_has_parameters_and_a_name_of_its_own(part):
    config = replace(SHAPE, nanochat=PARTS[part])
    model, plain = random_model(config), random_model(replace(config, nanochat=None))
    plain.load_state_dict(model.state_dict(), strict=False)
    assert (model(IDS) - plain(IDS)).abs().max() > 1e-2
    assert [one.unsupported_parts(config) for one in config.features] == [(part,)]
    assert dict(shapes(config)) == {name: tuple(one.shape) for name, one in model.state_dict().items()}
    assert config.num_params == sum(one.numel() for one in model.parameters())
    assert model_config(config_json(config, "float32", 0, [0])) == config


@pytest.mark.parametrize("parts", [WHOLE, PARTS["sliding windows"], PARTS["smear"]], ids=["whole", "windows", "smear"])
def test_logits_with_a_cache_equal_those_without_also_for_padded_rows(parts):
    config = replace(SHAPE, nanochat=parts)
    model, starts = random_model(config), torch.tensor([0, 15])
    with torch.inference_mode():
        whole, alone = model(IDS), model(IDS[1:, 15:])  # The first 15 positions of the second row are padding.
        cache = Cache.empty(config, starts, 40)
        parts = [model(IDS[:, a:b], cache) for a, b in ((0, 25), (25, 26), (26, 40))]
    cached = torch.cat(parts, dim=1)
    assert (cached[0] - whole[0]).abs().max() < 1e-4
    assert (cached[1, 15:] - alone[0]).abs().max() < 1e-4


def test_cache_holds_an_embedding_wider_than_the_keys_and_values_of_a_layer():
    config = replace(SHAPE, num_attention_heads=6, num_key_value_heads=1, head_dim=8, hidden_size=40)
    model = random_model(config)
    cache = Cache.empty(config, torch.zeros(2, dtype=torch.long), 40)
    assert len(cache.keys) == 4 + 3
    with torch.inference_mode():
        cached = torch.cat([model(IDS[:, a:b], cache) for a, b in ((0, 9), (9, 10), (10, 40))], dim=1)
        assert (cached - model(IDS)).abs().max() < 1e-4


def test_answers_in_parallel_equal_single_answers():
    model, new = random_model(), 24
    prompts = [[5, 6, 7], [9], [3, 4, 5, 6, 7, 8, 9, 10, 11], [12] * 20]
    stop = set(range(40))
    want = [generate(model, [prompt], stop, new)[0] for prompt in prompts]
    assert generate(model, prompts, stop, new) == want
    got = generate_answers(model, prompts, 1, stop, Sampling(max_new=new, temperature=0), torch.zeros(4, new), rows=2)
    assert [got.answer_ids(row)[: len(one)] for row, one in enumerate(want)] == want


def test_packed_documents_and_trees_of_answers_have_the_values_of_single_rows():
    model, lengths = random_model(), (7, 1, 20, 12)
    documents = torch.cat([torch.full((n,), k) for k, n in enumerate(lengths)])[None]
    packed, start = model.hidden(IDS[:1], documents=documents)[0], 0
    for length in lengths:
        part = slice(start, start + length)
        alone = model.hidden(IDS[:1, part])[0]
        assert (packed[part] - alone).abs().max() < 1e-4
        start += length

    prompts, answers = [[3, 4, 5, 6, 7, 8, 9]] * 3, [[11, 12, 13, 14, 15], [11, 12, 16, 17], [18, 19, 20, 21, 22, 23]]
    batch, spots = pack_answers(prompts, answers, 0, room=64)
    hidden = hidden_of(model, {name: torch.from_numpy(one) for name, one in batch.items()}).flatten(0, 1)
    for prompt, answer, places in zip(prompts, answers, spots, strict=True):
        alone = model.hidden(torch.tensor([[*prompt, *answer][:-1]]))[0, -len(answer) :]
        assert (hidden[places] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("is_packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize(("windows", "layer", "window"), [("S", 0, 6), ("S", 1, 16), ("L", 0, 16), ("L", 1, 16)])
def test_layer_of_a_row_beyond_the_positions_reads_as_many_tokens_as_its_window(windows, layer, window, is_packed):
    parts = NanochatParts(windows=windows, window=6, value_channels=6)
    config = replace(SHAPE, num_hidden_layers=2, max_position_embeddings=16, nanochat=parts)
    model = random_model(config)
    model.blocks[1 - layer].self_attn.o_proj.weight.data.zero_()  # only one layer reads other tokens
    documents = torch.tensor([[0] * 10 + [1] * 30]) if is_packed else None
    changed, at = IDS[:1].clone(), 20
    changed[0, at] += 1
    with torch.inference_mode():
        moved = (model.hidden(changed, documents=documents) - model.hidden(IDS[:1], documents=documents)).abs()
    assert moved[0].amax(dim=-1).nonzero().flatten().tolist() == list(range(at, at + window + 1))


def test_value_embeddings_grow_with_the_vocabulary():
    config, weights = import_model.grown(random_model(), 330, [])
    grown = Decoder(config)
    grown.load_state_dict(weights)
    assert config.vocab_size == 384 and grown(IDS).shape[-1] == 384
    assert (grown(IDS)[..., :320] - random_model()(IDS)).abs().max() < 1e-5


@pytest.mark.nightly
def test_window_of_flex_attention_equals_the_window_of_the_masked_kernel():
    model = random_model()
    documents = torch.cat([torch.full((n,), k) for k, n in enumerate((7, 1, 20, 12))])[None]
    found = []
    for is_flex in (False, True):
        at = model.positions(positions_in(documents), documents_mask(documents, is_flex), True)
        _, state = model.model.begin(IDS[:1], at, None, documents, torch.float32)
        q = torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(1))
        found.append(attend(q, q[:, :1], q[:, :1], state.near.mask))
    assert (found[0] - found[1]).abs().max() < 1e-5


def test_window_is_handed_to_the_kernel_of_packed_documents():
    bounds = DocumentBounds(torch.tensor([0, 7, 40], dtype=torch.int32), 40)
    assert window_mask(torch.zeros(1, 40, 8), bounds, IDS[:1], 4, SHAPE) == replace(bounds, window=4)


@pytest.mark.nightly  # imports PyTorch's compiler
@pytest.mark.parametrize("how", ["recompute", "keeps_products"])
def test_recomputed_activations_give_the_gradients_of_kept_activations(how):
    model = random_model()

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model.loss(IDS, IDS.roll(-1, 1)).backward()
        return [one.grad.clone() for one in model.parameters()]

    before = gradients()
    model.recompute = how == "recompute"
    for block in model.blocks:
        block.keeps_products = how == "keeps_products"
    for one, other in zip(before, gradients(), strict=True):
        assert one.abs().max() > 0 and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nanochat": NanochatParts(windows="SX", window=4)}, "expected the letters L and S"),
        ({"nanochat": NanochatParts(windows="SL")}, "nanochat.window must be at least 1"),
        ({"nanochat": NanochatParts(smear_channels=64)}, "at most hidden_size 32"),
        ({"nanochat": NanochatParts()}, "nanochat has no part"),
        pytest.param(
            *({"mlp": "swiglu", "embed_norm": False, "ternary": Ternary()}, "cannot be combined with ternary matrices"),
            marks=pytest.mark.pack("bits"),
        ),
        pytest.param({"blocks": BlocksConfig()}, "or with decoding in blocks", marks=pytest.mark.pack("blocks")),
    ],
)
def test_shape_that_is_not_supported_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(SHAPE, **changes)


def test_export_and_services_name_the_engine_that_runs_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_json(SHAPE, "float32", 0, [0])))
    export.write_weights(tmp_path, random_model().state_dict(), torch.float32)
    with pytest.raises(Refused, match="value embeddings, smear.*run the model with inv chat, or .*--engine torch"):
        export.copy(tmp_path, tmp_path / "out", torch.float32)
    assert "llama.cpp does not support sliding windows, value embeddings" in SHAPE.gguf_problem("f16")
    kind = model_kinds.kind_of(str(tmp_path))
    assert kind is not None and kind.engines == ("torch",)


def test_model_is_refused_with_the_name_of_a_missing_pack(monkeypatch, tmp_path):
    from store import packs
    from trainer.records import model_config as records

    raw = config_json(SHAPE, "float32", 0, [0])
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "FOLDER", tmp_path / "packs")
    records.feature.cache_clear()
    (tmp_path / "config.json").write_text(json.dumps(raw))
    try:
        with pytest.raises(ConfigError, match="nanochat belongs to the pack speedrun, and packs/speedrun is missing"):
            model_config(raw)
        with pytest.raises(UsageError, match="belongs to the pack speedrun"):
            model_kinds.kind_of(str(tmp_path))
    finally:
        records.feature.cache_clear()
