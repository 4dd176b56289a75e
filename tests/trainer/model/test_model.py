"""The decoder compared with transformers on the same weights; the loss; the KV cache."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from data.config import ConfigError
from data.tokens.pieces import decode_stream
from trainer import tensor_file
from trainer.errors import Refused
from trainer.model import export, huggingface
from trainer.model.decoder import Cache, Decoder, initialize
from trainer.model.generate import generate
from trainer.records.model_config import ModelConfig

pytestmark = pytest.mark.slow

SHAPE = ModelConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=64,
    rope_theta=50_000.0,
)
LLAMA, QWEN3 = replace(SHAPE, tie_word_embeddings=False), replace(SHAPE, qk_norm=True, rms_norm_eps=1e-6)
QWEN2 = replace(SHAPE, attention_bias=True, rms_norm_eps=1e-6)
IDS = torch.randint(0, 512, (2, 40), generator=torch.Generator().manual_seed(3))


def random_model(config: ModelConfig) -> Decoder:
    model = Decoder(config)
    initialize(model, 5)
    generator = torch.Generator().manual_seed(6)
    for parameter in model.parameters():  # Also values that start at zero or one.
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
    return model


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_transformers_loads_our_export_with_equal_logits(config, inputs, tmp_path):
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = random_model(config)
    export.write(tmp_path / "hf", config, model.state_dict(), inputs[0] / "tokenizer")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        assert (theirs(IDS).logits - model(IDS)).abs().max() < 1e-4
    assert type(theirs).__name__ == huggingface.ARCHITECTURES[huggingface.kind_of(config)]
    assert sum(p.numel() for p in theirs.parameters()) == config.num_params
    assert len(GenerationConfig.from_pretrained(tmp_path / "hf").eos_token_id) == 2


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_decoder_loads_a_transformers_folder_with_equal_logits(kind, tmp_path):
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=64,
        tie_word_embeddings=kind != "Llama",
        rope_parameters={"rope_type": "default", "rope_theta": 20_000.0},
    )
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, one in theirs.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(one)  # The values start at zero.
    theirs.save_pretrained(tmp_path)
    ours = export.read(tmp_path)
    with torch.no_grad():
        assert (theirs(IDS).logits - ours(IDS)).abs().max() < 1e-4
    assert ours.config.rope_theta == 20_000.0
    assert (ours.config.qk_norm, ours.config.attention_bias) == (kind == "Qwen3", kind == "Qwen2")


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "attention_factor": 1.3,
     "beta_fast": 16.0, "truncate": False},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda one: one["rope_type"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_stretched_positions_give_the_logits_of_transformers_in_both_directions(kind, scaling, inputs, tmp_path):
    import transformers

    shape = {**asdict(SHAPE), "tie_word_embeddings": kind == "Qwen3"}
    names = {name: shape[name] for name in (*huggingface.SHAPE, "head_dim")}
    config = getattr(transformers, f"{kind}Config")(**names, rope_parameters={**scaling, "rope_theta": 5_000.0})
    torch.manual_seed(8)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = export.read(tmp_path / "theirs")
    export.write(tmp_path / "ours", ours.config, ours.state_dict(), inputs[0] / "tokenizer")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(IDS).logits
        assert (expected - ours(IDS)).abs().max() < 1e-4
        assert (expected - again(IDS).logits).abs().max() < 1e-4
    assert ours.config.rope_scaling.kind == scaling["rope_type"]
    plain = Decoder(replace(ours.config, rope_scaling=None))
    plain.load_state_dict(ours.state_dict())
    assert (plain(IDS) - ours(IDS)).abs().max() > 1e-3  # The stretching has an effect.


def test_large_model_is_written_in_several_files_that_both_libraries_read(inputs, tmp_path):
    from transformers import AutoModelForCausalLM

    model = random_model(LLAMA)
    folder = tmp_path / "hf"
    export.write(folder, LLAMA, model.state_dict(), inputs[0] / "tokenizer")
    (folder / "model.safetensors").unlink()
    export.write_weights(folder, model.state_dict(), torch.float32, most=100_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    sizes = [file.stat().st_size for file in shards]
    assert max(sizes) < 512 * 64 * 4 + 10_000  # The embedding alone exceeds the requested size.
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert (theirs(IDS).logits - export.read(folder)(IDS)).abs().max() < 1e-4
    os.truncate(shards[1], shards[1].stat().st_size - 1)
    with pytest.raises(Refused, match=f"{shards[1].name} is damaged or not a safetensors file"):
        export.read(folder)
    shards[1].unlink()
    with pytest.raises(Refused, match=shards[1].name):
        export.read(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(Refused, match="not a valid index of weights"):
        export.read(folder)


def test_weights_of_another_shape_are_refused_by_name(inputs, tmp_path):
    model = random_model(LLAMA)
    export.write(tmp_path / "hf", replace(LLAMA, num_hidden_layers=4), model.state_dict(), inputs[0] / "tokenizer")
    with pytest.raises(Refused, match=r"layers\.3\.input_layernorm\.weight is missing; .* and 4 more"):
        export.read(tmp_path / "hf")


def test_untied_head_is_compared_with_the_tied_embedding(inputs, tmp_path):
    model = random_model(QWEN3)
    weights = {**model.state_dict(), "lm_head.weight": model.head.clone()}
    export.write(tmp_path / "same", QWEN3, weights, inputs[0] / "tokenizer", torch.bfloat16)
    assert torch.equal(export.read(tmp_path / "same").head, model.head.to(torch.bfloat16).float())
    weights["lm_head.weight"][3, 5] += 1
    export.write(tmp_path / "other", QWEN3, weights, inputs[0] / "tokenizer")
    with pytest.raises(Refused, match=r"sets tie_word_embeddings, but lm_head\.weight differs from the embedding"):
        export.read(tmp_path / "other")


def test_model_unsupported_by_the_decoder_is_refused(tmp_path):
    raw = huggingface.config_json(SHAPE, "float32", 0, [1])
    assert huggingface.model_config(raw) == SHAPE
    for wrong in (
        {"model_type": "gpt2"},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"rope_parameters": {"rope_type": "linear"}},  # The divisor is missing.
        {"attention_bias": True},
        {"model_type": "qwen2", "mlp_bias": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        # Other programs read this field, beside rope_parameters.
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},  # rope_theta is 50,000.
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},  # By kind of layer.
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},  # For any tensors in the folder.
        {"num_attention_heads": 0},
        {"hidden_size": "64"},
    ):
        with pytest.raises(ConfigError):
            huggingface.model_config({**raw, **wrong})
    with pytest.raises(Refused, match=r"config\.json is missing"):
        export.read(tmp_path)


def test_loss_and_gradients_equal_plain_cross_entropy_and_masked_targets_do_not_count():
    model = random_model(LLAMA)
    targets = IDS.roll(-1, 1).clone()
    targets[:, ::3] = -1
    loss = model.loss(IDS, targets)
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    plain = F.cross_entropy(model(IDS).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    plain.backward()
    assert torch.allclose(loss, plain, rtol=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(grads[name], parameter.grad, rtol=1e-3, atol=1e-4), name
    assert model.loss(IDS, torch.full_like(IDS, -1)).item() == 0


def test_masked_targets_give_no_gradient():
    model, other = random_model(QWEN3), IDS.roll(-1, 1).clone()
    targets = other.clone()
    targets[:, 20:] = -1
    other[:, 20:] = -1
    changed = IDS.clone()
    changed[:, 21:] = 9  # Only inputs after the last counted target differ.
    first = torch.autograd.grad(model.loss(IDS, targets), model.head)[0]
    second = torch.autograd.grad(model.loss(changed, targets), model.head)[0]
    assert torch.equal(first, second)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_logits_with_a_cache_equal_those_without_also_for_padded_rows(config):
    model = random_model(config)
    short = IDS[1:, 15:]  # The first 15 positions in the batch are padding.
    starts = torch.tensor([0, 15])
    with torch.inference_mode():
        whole, alone = model(IDS), model(short)
        cache = Cache.empty(config, starts, 40)
        parts = [model(IDS[:, a:b], cache) for a, b in ((0, 25), (25, 26), (26, 40))]
    cached = torch.cat(parts, dim=1)
    assert (cached[0] - whole[0]).abs().max() < 1e-4
    assert (cached[1, 15:] - alone[0]).abs().max() < 1e-4
    with pytest.raises(ValueError, match="the model has 64"):
        model(torch.zeros(1, 65, dtype=torch.long))


def test_batched_decoding_equals_single_prompts_and_decoding_without_a_cache():
    model = random_model(QWEN3)
    prompts = [IDS[0, :9].tolist(), IDS[1, :20].tolist(), IDS[0, 5:8].tolist()]
    together = generate(model, prompts, stop=(), max_new=12)
    assert together == [generate(model, [one], stop=(), max_new=12)[0] for one in prompts]
    ids = list(prompts[1])
    for _ in range(12):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert together[1] == ids[20:]
    first = together[1][3]
    assert generate(model, prompts[1:2], stop=(first,), max_new=12)[0] == together[1][: together[1].index(first)]
    sampled = [generate(model, prompts, stop=(), max_new=8, temperature=1.0, top_k=5, seed=seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert generate(model, prompts, stop=(), max_new=8, temperature=1.0, top_k=1) == [one[:8] for one in together]
    assert len(generate(model, [IDS[0].tolist()], stop=(), max_new=1000)[0]) == 64 - 40  # The positions end there.
    few = max(min(one) for one in together) + 1  # Some rows' likeliest ids are beyond the tokenizer.
    assert max(max(one) for one in together) >= few
    for how in ({}, {"temperature": 2.0}, {"temperature": 2.0, "top_k": 5}):
        assert all(max(one) < few for one in generate(model, prompts, stop=(), max_new=12, num_ids=few, **how))


def test_streamed_text_never_contains_half_a_character(inputs):
    from data.tokens import tokenizer

    words = tokenizer.load(inputs[0] / "tokenizer")
    text = "na\u00efve \u2014 \U0001f6a2 caf\u00e9 \u65e5\u672c"
    ids = words.encode(text)
    pieces = list(decode_stream(ids, words.decode))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert len(pieces) > 5
    ship = words.encode("\U0001f6a2")
    assert len(ship) > 1
    assert "".join(decode_stream(ship[:-1], words.decode)) == ""


def test_tensor_files_are_valid_safetensors_and_their_hash_is_that_of_the_file(tmp_path):
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.tensor(7.0),
        "c": torch.arange(4, dtype=torch.uint8),
        "d": torch.randn(2, 2).bfloat16(),
        "e": torch.randn(4, 6).t(),
    }
    written = tensor_file.write(tmp_path / "x.safetensors", tensors)
    back = tensor_file.read(tmp_path / "x.safetensors")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    assert written.size == (tmp_path / "x.safetensors").stat().st_size
    assert written.sha256 == tensor_file.sha256(tmp_path / "x.safetensors")
    head = (tmp_path / "x.safetensors").read_bytes()
    assert json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"] == {"format": "pt"}
    with pytest.raises(FileExistsError):
        tensor_file.write(Path(tmp_path / "x.safetensors"), tensors)
