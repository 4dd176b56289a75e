"""Ternary matrices: exact values, gradients, results of other libraries for the same weights; distillation."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from data.config import ConfigError
from packs.bits.records.bitnet_layouts import ROUNDED
from packs.bits.trainer import distillation, packed
from packs.bits.trainer.ternary import (
    TernaryLinear,
    haar,
    inverse_haar,
    layers_of,
    relative_error,
    rounded_weight,
    ternary,
)
from tests.trainer.model.test_model import IDS, SHAPE, random_model
from trainer.errors import Refused
from trainer.model import export, huggingface
from trainer.model.decoder import Cache, Decoder
from trainer.model.token_losses import Teacher, sliced_kl
from trainer.records.model_config import BlocksConfig, Ternary

BITNET = replace(SHAPE, head_dim=16, sub_norm=True, ternary=Ternary())
WAYS = [Ternary(), Ternary(per_row=True), Ternary(haar=True), Ternary(per_row=True, haar=True)]


def test_symbols_and_scales_follow_the_formula():
    weight = torch.tensor([[1.0, -0.5, 0.25, 0.0], [3.0, 0.0, -0.15, 0.1]])
    symbols, scale = ternary(weight)
    assert scale.item() == pytest.approx(0.625)
    assert symbols.tolist() == [[1, -1, 0, 0], [1, 0, 0, 0]]
    symbols, scale = ternary(weight, per_row=True)
    assert scale.flatten().tolist() == pytest.approx([0.4375, 0.8125])
    assert symbols.tolist() == [[1, -1, 1, 0], [1, 0, 0, 0]]
    assert ternary(torch.tensor([[1.0, 0.5, 0.5, 0.0]]))[0].tolist() == [[1, 1, 1, 0]]
    assert ternary(torch.tensor([[2.0, 0.5, 1.5, 0.0]]))[0].tolist() == [[1, 0, 1, 0]]  # Half of the scale: to even.
    symbols, scale = ternary(torch.zeros(2, 4))
    assert not symbols.any() and scale.item() == pytest.approx(1e-5)
    assert ternary(torch.full((512, 512), 1.001, dtype=torch.bfloat16))[1].item() == pytest.approx(1.0)  # Mean in fp32.


def test_gaussian_matrix_has_the_theoretical_rounding_error():
    weight = torch.randn(600, 600, generator=torch.Generator().manual_seed(1))
    assert (ternary(weight)[0] == 0).float().mean().item() == pytest.approx(0.310, abs=0.002)
    assert relative_error(weight, Ternary()) == pytest.approx(0.263, abs=0.002)
    assert relative_error(weight, Ternary(haar=True)) == pytest.approx(0.263, abs=0.002)  # Each band is Gaussian again.


def test_haar_transform_keeps_lengths_and_its_matrix_is_ternary_in_its_domain():
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    assert haar(x)[0, 0].item() == pytest.approx((x[0, 0] + x[0, 1]).item() / math.sqrt(2))
    assert torch.allclose(inverse_haar(haar(x)), x, atol=1e-6)
    assert torch.allclose(haar(x).norm(), x.norm())
    low, high = haar(rounded_weight(x, Ternary(haar=True))).chunk(2, dim=-1)
    assert all(len(band.abs().round(decimals=4).unique()) <= 2 for band in (low, high))  # 0 and one scale.
    with pytest.raises(ConfigError, match="must both be even"):
        replace(SHAPE, intermediate_size=97, ternary=Ternary(haar=True))


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_layer_multiplies_rounded_weights_and_passes_gradients_straight_through(how):
    torch.manual_seed(2)
    layer, x = TernaryLinear(16, 6, how), torch.randn(5, 16, requires_grad=True)
    layer.weight.data *= torch.rand(6, 1) * 3
    gain = 127 / x.detach().abs().amax(dim=1, keepdim=True)
    x_near = (x.detach() * gain).round() / gain
    w_near = rounded_weight(layer.weight.detach(), how)
    y = layer(x)
    assert torch.allclose(y, x_near @ w_near.T, atol=1e-5)
    slope = torch.randn(5, 6)
    y.backward(slope)
    assert torch.allclose(x.grad, slope @ w_near, atol=1e-5)
    assert torch.allclose(layer.weight.grad, slope.T @ x_near, atol=1e-5)
    layer.share = torch.tensor(0.25)
    part = (x + 0.25 * (x_near - x)) @ (layer.weight + 0.25 * (w_near - layer.weight)).T
    assert torch.allclose(layer(x), part, atol=1e-5)
    layer.share.fill_(0)
    assert torch.allclose(layer(x), F.linear(x, layer.weight), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(layer(x), y)  # For every share.
        assert torch.equal(layer.eval()(x), y)
        layer.weight += 1
        assert not torch.equal(layer(x), y)  # The cached rounding is dropped.


def test_exempt_columns_stay_and_nan_stays_nan():
    layer, x = TernaryLinear(8, 4, Ternary()), torch.randn(3, 8)
    layer.exact = torch.tensor([True] + [False] * 7)
    gradient = torch.autograd.grad(layer(x).sum(), layer.weight)[0]
    assert gradient.abs().min() > 0
    near = torch.where(layer.exact, layer.weight, rounded_weight(layer.weight, layer.how))
    assert torch.allclose(layer(torch.eye(8)), near.T, atol=1e-5)
    x[1, 2] = float("nan")
    assert layer(x).isnan().any(dim=1).tolist() == [False, True, False]


def test_ternary_model_decodes_the_same_with_a_cache_and_has_the_counted_parameters():
    model = random_model(BITNET).eval()
    assert sum(one.numel() for one in model.parameters()) == BITNET.num_params
    assert set(layers_of(model)) == {
        f"model.layers.{layer}.{name}_proj"
        for layer in range(3)
        for name in (*(f"self_attn.{one}" for one in "qkvo"), *(f"mlp.{one}" for one in ("gate", "up", "down")))
    }
    with torch.no_grad():
        whole = model(IDS)
        cache = Cache.empty(BITNET, torch.zeros(2, dtype=torch.long), 40)
        parts = torch.cat([model(IDS[:, :30], cache), model(IDS[:, 30:], cache)], dim=1)
    assert (whole - parts).abs().max() < 1e-3
    plain = Decoder(replace(BITNET, ternary=None))
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert (plain(IDS) - whole).abs().max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("config", [BITNET, replace(BITNET, sub_norm=False, qk_norm=True, tie_word_embeddings=False)],
                         ids=["bitnet", "qwen3"])  # fmt: skip
def test_transformers_gives_the_same_logits_for_master_weights(config, inputs, tmp_path):
    """Insert the quantiser's layers by hand, because `from_pretrained` would need a further package for them."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.bitnet import AutoBitLinear, replace_with_bitnet_linear
    from transformers.utils.quantization_config import BitNetQuantConfig

    model = random_model(config).eval()
    export.write(tmp_path / "hf", config, model.state_dict(), inputs[0] / "tokenizer")
    said = json.loads((tmp_path / "hf" / "config.json").read_text())["quantization_config"]
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "hf"))
    how = BitNetQuantConfig(**{name: value for name, value in said.items() if name != "quant_method"})
    theirs = replace_with_bitnet_linear(theirs, ["lm_head"], how).to_empty(device="cpu")
    assert type(theirs).__name__ == ("BitNetForCausalLM" if config.sub_norm else "Qwen3ForCausalLM")
    assert sum(isinstance(one, AutoBitLinear) for one in theirs.modules()) == 21
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    missing, unknown = theirs.load_state_dict(weights, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    theirs.model.rotary_emb.__init__(theirs.config)  # The buffers were on no device.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        apart = (theirs.eval()(IDS).logits - model(IDS)).abs()
    # The last bit may round an activation to the neighboring value.
    assert apart.median() < 1e-5 and apart.max() < 0.05
    again = export.read(tmp_path / "hf").eval()
    assert again.config == config
    with torch.no_grad():
        assert torch.equal(again(IDS), model(IDS))


@pytest.mark.slow
def test_transformers_unpacks_packed_weights_with_equal_logits(inputs, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.bitnet import replace_with_bitnet_linear, unpack_weights
    from transformers.utils.quantization_config import BitNetQuantConfig

    model = random_model(BITNET).eval()
    export.write(tmp_path / "hf", BITNET, model.state_dict(), inputs[0] / "tokenizer")
    packed.write(tmp_path / "hf", tmp_path / "packed", torch.float32)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("hf", "packed")]
    assert sizes[0] - sizes[1] > 3 * sum(one.weight.numel() for one in layers_of(model).values())
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "packed"))
    how = BitNetQuantConfig(linear_class="autobitlinear", quantization_mode="offline")
    theirs = replace_with_bitnet_linear(theirs, ["lm_head"], how).to_empty(device="cpu")
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        weights = {
            name: unpack_weights(one, torch.float32) if one.dtype == torch.uint8 else one
            for name, one in load_file(tmp_path / "packed" / "model.safetensors").items()
        }
        missing, unknown = theirs.load_state_dict(weights, strict=False)
        assert not unknown and set(missing) <= {"lm_head.weight"}
        theirs.tie_weights()
        theirs.model.rotary_emb.__init__(theirs.config)
        apart = (theirs.eval()(IDS).logits - model(IDS)).abs()
    assert apart.median() < 1e-5 and apart.max() < 0.05
    with torch.no_grad():
        apart = (export.read(tmp_path / "packed").eval()(IDS) - model(IDS)).abs()
    assert apart.median() < 1e-5 and apart.max() < 0.05
    own = random_model(replace(BITNET, qk_norm=True))
    export.write(tmp_path / "own", own.config, own.state_dict(), inputs[0] / "tokenizer")
    with pytest.raises(Refused, match="transformers does not support this shape"):
        packed.write(tmp_path / "own", tmp_path / "other", torch.float32)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (BITNET, "bitnet"),
        (replace(SHAPE, ternary=Ternary()), "llama"),
        (replace(SHAPE, ternary=Ternary(), qk_norm=True), "qwen3"),
        (replace(BITNET, qk_norm=True), "slipway"),
        (replace(SHAPE, sub_norm=True, head_dim=16), "bitnet"),
        (replace(SHAPE, sub_norm=True), "slipway"),  # Heads wider than the model.
        (replace(SHAPE, qk_norm=True, sub_norm=True), "slipway"),
        (replace(BITNET, ternary=Ternary(per_row=True, haar=True)), "slipway"),
    ],
)
def test_shape_is_exported_under_a_fitting_architecture_and_read_back(config, kind):
    said = huggingface.config_json(config, "float32", 1, [2])
    assert said["model_type"] == kind
    assert huggingface.model_config(said) == config
    assert dict(huggingface.shapes(config)).keys() == Decoder(config).state_dict().keys()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "supported quantised models: "),
        ({"quantization_config": {**ROUNDED, "quantization_mode": "both"}}, "quantization_mode"),
        ({"quantization_config": {**ROUNDED, "modules_to_not_convert": ["q_proj"]}}, "only lm_head"),
        ({"quantization_config": {**ROUNDED, "use_rms_norm": True}}, "use_rms_norm"),
        ({"quantization_config": 7}, "supported quantised models: "),
        ({"hidden_act": "gelu"}, "supported: silu"),
        ({"hidden_act": "relu2", "model_type": "llama"}, "supported: silu"),
        ({"model_type": "slipway", "ternary": {"per_row": 1}}, "per_row and haar"),
        ({"model_type": "slipway", "ternary": {"bits": True}}, "per_row and haar"),
    ],
)
def test_unsupported_rounding_is_refused(change, said):
    raw = {**huggingface.config_json(BITNET, "float32", 1, [2]), **change}
    with pytest.raises(ConfigError, match=said):
        huggingface.model_config(raw)


def test_models_that_llama_cpp_cannot_run_are_detected():
    fits = replace(BITNET, hidden_size=256, num_attention_heads=16, intermediate_size=512)
    assert fits.gguf_problem() == "" and replace(fits, ternary=None, intermediate_size=500).gguf_problem("f16") == ""
    assert "intermediate_size 704 (nearest: 768)" in replace(fits, intermediate_size=704).gguf_problem()
    assert "multiples of 32" in replace(fits, intermediate_size=520, ternary=None).gguf_problem("q8_0")
    assert "not ternary" in replace(fits, ternary=None).gguf_problem()
    assert "Haar" in replace(fits, ternary=Ternary(haar=True)).gguf_problem()
    assert (
        "SubLN" in replace(fits, qk_norm=True).gguf_problem() and "SubLN" in replace(fits, head_dim=32).gguf_problem()
    )
    assert replace(fits, qk_norm=True, sub_norm=False).gguf_problem() == ""
    without = "; a model without SubLN (model.sub_norm=false) is supported"
    assert replace(fits, qk_norm=True).gguf_problem().endswith(without)
    assert without not in replace(fits, qk_norm=True, intermediate_size=704).gguf_problem()
    assert "capped" in replace(fits, logit_softcap=15.0).gguf_problem()


@pytest.mark.pack("blocks")
def test_ternary_model_that_decodes_in_blocks_requires_our_own_engine():
    in_blocks = replace(BITNET, blocks=BlocksConfig(mask_id=5))
    assert all("decodes in blocks" in one for one in (in_blocks.gguf_problem(), packed.packed_problem(in_blocks)))


@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_sliced_divergence_equals_whole_logits_with_gradients(softcap, monkeypatch):
    monkeypatch.setattr("trainer.model.token_losses.ROWS_CPU", 7)
    torch.manual_seed(3)
    hidden, head = torch.randn(20, 12, requires_grad=True), torch.randn(30, 12, requires_grad=True)
    teacher, targets = Teacher(torch.randn(20, 5), torch.randn(30, 5)), torch.randint(0, 30, (20,))
    total, nats, divergence = sliced_kl(hidden, head, targets, teacher, torch.tensor([0.5, 2.0]), 2.0, softcap)
    logits = hidden @ head.T
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    ours, theirs = (logits / 2).log_softmax(1), (teacher.hidden @ teacher.head.T / 2).softmax(1)
    expected = F.cross_entropy(logits, targets, reduction="sum"), F.kl_div(ours, theirs, reduction="sum")
    assert torch.allclose(torch.stack([nats, divergence]), torch.stack(expected), rtol=1e-5)
    whole = 0.5 * expected[0] + 2 * expected[1]
    assert torch.allclose(total, whole, rtol=1e-5)
    for mine, right in zip(*(torch.autograd.grad(3 * one, (hidden, head)) for one in (total, whole)), strict=True):
        assert torch.allclose(mine, right, atol=1e-4)


def test_layer_distances_follow_the_formula():
    assert distillation.layer_weights("progressive", 3) == [1 / 6, 2 / 6, 3 / 6]
    assert distillation.layer_weights("exponential", 3) == [1 / 7, 2 / 7, 4 / 7]
    assert distillation.layer_weights("uniform", 4) == [0.25] * 4
    torch.manual_seed(4)
    ours, theirs = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    counted = torch.tensor([0, 2, 3, 4])
    found = distillation.layer_distance(list(ours), list(theirs), [0.25, 0.75], counted)
    cosine = F.cosine_similarity(ours, theirs, dim=-1)  # (2, 6)
    expected = (torch.tensor([[0.25], [0.75]]) * 2 * (1 - cosine) / 8)[:, counted].sum()  # |a - b|^2 = 2 (1 - cos)
    assert torch.allclose(found, expected, rtol=1e-5)
    assert distillation.layer_distance([3 * ours[0]], [ours[0]], [1.0], counted) < 1e-6  # Lengths do not count.


def test_relations_follow_the_formula_and_are_causal():
    torch.manual_seed(5)
    ours, theirs = torch.randn(2, 2, 6, 16, requires_grad=True), torch.randn(2, 2, 6, 16)
    unseen, counted = torch.ones(6, 6, dtype=torch.bool).triu(1), torch.rand(2, 6) > 0.3
    found = distillation.relation_divergence(ours, theirs, 8, unseen, counted)

    def relations(x):  # (B, 8, T, T)
        joined = torch.cat([x[:, 0], x[:, 1]], dim=-1)  # (B, T, 32)
        vectors = torch.stack([F.normalize(one, dim=-1) for one in joined.chunk(8, dim=-1)], dim=1)
        return (vectors @ vectors.mT).masked_fill(unseen, -1e9).log_softmax(dim=-1)

    mine, right = relations(ours), relations(theirs)
    expected = (right.exp() * (right - mine)).sum(dim=-1).mean(dim=1)[counted].sum() / 8
    assert torch.allclose(found, expected, rtol=1e-4)
    slopes = [torch.autograd.grad(one, ours)[0] for one in (found, expected)]
    assert torch.allclose(*slopes, atol=1e-6)
    assert slopes[0].abs().max() > 1e-5
    by_row = distillation.relation_divergence(ours, theirs, 8, unseen.expand(2, 6, 6), counted)
    assert torch.equal(by_row, found)
