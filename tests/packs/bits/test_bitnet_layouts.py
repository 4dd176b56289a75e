"""Published models of 1.58 bits, in the layouts of 1bitLLM and Microsoft, compared with transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packs.bits.trainer import packed
from packs.bits.trainer.ternary import layers_of, masters, pack, ternary, unpack
from tests.trainer.model.test_model import IDS
from trainer.errors import Refused
from trainer.model import export

pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ONE_BIT_LLM = {
    **SIZES,
    "architectures": ["BitnetForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_key_value_heads": 4,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "pretraining_tp": 1,
    "torch_dtype": "float16",
    "weight_bits": 1,
    "input_bits": 8,
}
MICROSOFT = {
    **SIZES,
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "hidden_act": "relu2",
    "num_key_value_heads": 2,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "auto_map": {"AutoConfig": "configuration_bitnet.BitNetConfig"},
    "quantization_config": {
        "linear_class": "autobitlinear",
        "modules_to_not_convert": None,
        "quant_method": "bitnet",
        "quantization_mode": "online",
    },
}
OF_1BITLLM = {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}


def transformers_model(raw: dict[str, Any]) -> nn.Module:
    """Return a random model of transformers for a layout, with the linear layers of the layout's quantiser."""
    from transformers import AutoModelForCausalLM, BitNetConfig, LlamaConfig
    from transformers.integrations.bitnet import replace_with_bitnet_linear
    from transformers.utils.quantization_config import BitNetQuantConfig

    fields = {name: value for name, value in raw.items() if name not in ("model_type", "architectures", "auto_map")}
    how = dict(fields.pop("quantization_config", MICROSOFT["quantization_config"]))
    how.pop("quant_method")
    is_llama = "inner" not in str(raw) and raw["model_type"] == "llama" and "weight_bits" not in raw
    config = (LlamaConfig if is_llama else BitNetConfig)(**{**fields, "dtype": "float32"})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, one in model.named_parameters():  # Norms and matrices of a trained model, not of its first step.
            one.copy_(torch.rand_like(one) + 0.5 if "norm" in name else torch.randn_like(one) * 0.3)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    quant = BitNetQuantConfig(**{name: one for name, one in how.items() if name != "modules_to_not_convert"})
    model = replace_with_bitnet_linear(model, ["lm_head"], quant).to_empty(device="cpu")
    model.load_state_dict(
        {
            name: one
            for name, one in before.items()
            if name in model.state_dict() and one.shape == model.state_dict()[name].shape
        },
        strict=False,
    )
    model.tie_weights()
    model.model.rotary_emb.__init__(model.config)  # The buffers were on no device.
    return model.eval()


def logits_of(model: nn.Module) -> Tensor:
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        return model(IDS).logits


def folder_of(raw: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(
        {name: one.clone() for name, one in tensors.items() if name != "lm_head.weight"}, folder / "model.safetensors"
    )
    return folder


def rounded(model: nn.Module, divides: bool) -> dict[str, Tensor]:
    """Return the tensors of a published folder of symbols with random scales, and load the symbols into the model."""
    from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights

    tensors = dict(model.state_dict())
    numbers = torch.Generator().manual_seed(3)
    for name, layer in model.named_modules():
        if not isinstance(layer, AutoBitLinear | BitLinear):
            continue
        symbols = torch.randint(-1, 2, (layer.out_features, layer.in_features), generator=numbers).float()
        scale = (torch.rand(1, generator=numbers) * 0.1 + 0.01).bfloat16().float()
        packed_ = pack_weights(symbols.clone())  # The unpacking adds 1 in place.
        assert torch.equal(packed_, pack(symbols)) and torch.equal(unpack(packed_), symbols)
        tensors |= {f"{name}.weight": packed_, f"{name}.weight_scale": (1 / scale if divides else scale)}
        layer.weight.data = packed_ if isinstance(layer, BitLinear) else symbols
        layer.weight_scale.data = tensors[f"{name}.weight_scale"].clone()
    return tensors


def same(found: Tensor, wanted: Tensor) -> None:
    apart = (found - wanted).abs()
    # The last bit may round an activation to the neighboring value.
    assert apart.median() < 1e-4 * wanted.std() and apart.max() < 0.05 * wanted.std(), (apart.median(), apart.max())


@pytest.mark.parametrize("raw", [ONE_BIT_LLM, MICROSOFT], ids=["1bitLLM", "microsoft"])
def test_master_weights_of_both_layouts_give_the_logits_of_transformers(raw, tmp_path):
    theirs = transformers_model(raw)
    tensors = dict(theirs.state_dict())
    if raw is ONE_BIT_LLM:
        tensors = {
            ".".join(OF_1BITLLM.get(part, part) for part in name.split(".")): one for name, one in tensors.items()
        }
        assert "model.layers.1.mlp.ffn_layernorm.weight" in tensors
    model = export.read(folder_of(raw, tensors, tmp_path / "hf")).eval()
    assert model.config.ternary and model.config.sub_norm
    assert model.config.mlp == ("swiglu" if raw is ONE_BIT_LLM else "gated_relu2")
    with torch.no_grad():
        same(model(IDS), logits_of(theirs))


@pytest.mark.parametrize("linear", ["autobitlinear", "bitlinear"])
def test_stored_symbols_and_scales_give_the_logits_of_transformers(linear, tmp_path):
    how = {"linear_class": linear, "quantization_mode": "offline", "quant_method": "bitnet"}
    raw = {**MICROSOFT, "quantization_config": how}
    if linear == "bitlinear":  # Like the ternary Llama 3 of the hub: without SubLN.
        raw |= {"model_type": "llama", "hidden_act": "silu", "architectures": ["LlamaForCausalLM"]}
    theirs = transformers_model(raw)
    tensors = rounded(theirs, divides=linear == "bitlinear")
    model = export.read(folder_of(raw, tensors, tmp_path / "hf")).eval()
    with torch.no_grad():
        same(model(IDS), logits_of(theirs))
    scales = {name: ternary(layer.weight.detach())[1].item() for name, layer in layers_of(model).items()}
    for name, scale in scales.items():
        stored = tensors[f"{name}.weight_scale"].item()
        assert scale == pytest.approx(1 / stored if linear == "bitlinear" else stored, rel=1e-5)


def test_model_of_gated_relu2_is_exported_in_the_format_of_transformers(inputs, tmp_path):
    theirs = transformers_model(MICROSOFT)
    came = export.read(folder_of(MICROSOFT, dict(theirs.state_dict()), tmp_path / "hf")).eval()
    export.write(tmp_path / "out", came.config, came.state_dict(), inputs[0] / "tokenizer")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (said["model_type"], said["hidden_act"]) == ("bitnet", "relu2")
    again = transformers_model({**said, "model_type": "bitnet"})
    again.load_state_dict(export.read(tmp_path / "out").state_dict(), strict=False)
    again.tie_weights()
    same(logits_of(again), logits_of(theirs))
    packed.write(tmp_path / "out", tmp_path / "packed", torch.float32)
    with torch.no_grad():
        same(export.read(tmp_path / "packed").eval()(IDS), came(IDS))


def test_master_weights_round_to_the_symbols_that_they_were_made_from():
    symbols = torch.tensor([[1.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    found, scale = ternary(masters(symbols, 0.037))
    assert torch.equal(found, symbols) and scale.item() == pytest.approx(0.037, rel=1e-6)
    assert not masters(torch.zeros(4, 4), 0.5).any()
    for odd, scale in ((symbols * 2, 0.1), (symbols, 0.0), (symbols, float("nan")), (symbols, float("inf"))):
        with pytest.raises(ValueError, match=r"-1, 0 or 1|its scale"):
            masters(odd, scale)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model.layers.0.mlp.up_proj.weight": torch.full((24, 64), 255, dtype=torch.uint8)},
            "some numbers are not -1, 0 or 1",
        ),
        ({"model.layers.0.mlp.up_proj.weight_scale": torch.tensor([0.0])}, "its scale is 0"),
        ({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(96)}, "has 96 numbers"),
        ({"model.layers.0.mlp.up_proj.weight_scale": None}, "its scale is 0"),
        ({"model.layers.0.mlp.odd.weight_scale": torch.ones(1)}, "odd.weight_scale is unknown"),
        ({"model.layers.0.mlp.up_proj.weight": torch.ones((23, 64), dtype=torch.uint8)}, r"is \(92, 64\) instead"),
    ],
)
def test_invalid_symbols_are_refused_with_a_reason(change, said, tmp_path):
    how = {**MICROSOFT["quantization_config"], "quantization_mode": "offline"}
    raw = {**MICROSOFT, "quantization_config": how}
    tensors = {**rounded(transformers_model(raw), divides=False), **change}
    folder = folder_of(raw, {name: one for name, one in tensors.items() if one is not None}, tmp_path / "hf")
    with pytest.raises(Refused, match=said):
        export.read(folder)


def test_other_bit_widths_of_the_layout_are_refused(tmp_path):
    folder = folder_of({**ONE_BIT_LLM, "weight_bits": 4}, {"a": torch.ones(1)}, tmp_path / "hf")
    with pytest.raises(Refused, match="weight_bits is 4; this decoder has 1"):
        export.read_config(folder)
    assert replace(export.model_config(ONE_BIT_LLM)).rope_theta == 10_000.0
