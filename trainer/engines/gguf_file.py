"""Conversion of a Hugging Face folder written by Slipway to a GGUF file for llama.cpp and derived programs.

The file holds weights, tokenizer and chat template. Ternary matrices become TQ2_0, 2 bits per weight and a float16
scale per 256 weights of a row, which equals the training-time rounding up to the last bits of the scale; the embedding
(also the head of most models here) becomes Q8_0; norms stay float32. Runs in the environment `llama-cpp`, without
torch. Sources: ggml's GGUF specification; llama.cpp's convert_hf_to_gguf.py (names, row order of rotated Llama
matrices).
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import BOS, END
from store import local_files, packs
from store.artifacts import model_files, tokenizer_files, vocabulary
from store.untrusted_input import UnusableDocument
from trainer.errors import Refused
from trainer.model.huggingface import differences, is_spare, model_config
from trainer.records.model_config import ModelConfig

PRE = "llama-bpe"  # llama.cpp's pre-tokenizer closest to Slipway's
TYPES = {
    "tq2_0": (gguf.GGMLQuantizationType.TQ2_0, gguf.LlamaFileType.MOSTLY_TQ2_0),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
WIDTHS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def write(folder: Path, out: Path, kind: str) -> dict[str, Any]:
    """Convert a Hugging Face folder to the new GGUF file `out` and return the facts about the file. Raises Refused.

    kind: type of the matrices inside the blocks, a key of TYPES. Matrices of a ternary model are always rounded first.
    """
    config = read_config(folder)
    if problem := config.gguf_problem(kind):
        raise Refused(f"{folder} cannot be converted to a GGUF file of type {kind}: {problem}")
    if out.exists():
        raise Refused(f"{out} already exists. Remove the file, or choose a different name: --out FILE")
    if not out.parent.is_dir():
        raise Refused(f"{out}: the folder {out.parent} does not exist")
    arch = "bitnet" if config.sub_norm else "qwen3" if config.qk_norm else "llama"
    draft = out.with_name(f".{out.name}.{os.getpid()}.draft")
    writer = gguf.GGUFWriter(draft, arch)
    describe(writer, config, kind)
    add_tokenizer(writer, folder, config.vocab_size)
    quantisation, count = TYPES[kind][0], 0
    for name, weight in sorted(weights(folder, config)):
        stem = name.removesuffix(".weight")
        if stem in ENDS:
            type_ = {"q8_0": quantisation, "tq2_0": gguf.GGMLQuantizationType.Q8_0}.get(kind, quantisation)
            add(writer, f"{ENDS[stem]}.weight", weight, type_)
            continue
        _, _, layer, part = stem.split(".", 3)
        if weight.ndim == 2:
            count += weight.size
            for one in filter(None, (each.gguf_matrix for each in config.features)):
                weight = packs.load(one)(weight, config)
        if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if "q_proj" in part else config.num_key_value_heads
            weight = interleaved(weight, heads)
        add(writer, f"blk.{layer}.{NAMES[part]}.weight", weight, quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.rename(out)
    return {"path": str(out), "bytes": out.stat().st_size, "architecture": arch, "matrices": kind, "numbers": count}


def cached(folder: Path, kind: str) -> Path:
    """Return the cache path of the GGUF file for a folder; names, sizes and mtimes of the files are part of the key."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    files = sorted((path.name, path.stat()) for path in folder.resolve().iterdir() if path.is_file())
    said = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    key = hashlib.sha256(f"{folder.resolve()}\n{kind}\n{said}".encode()).hexdigest()[:24]
    return home / "slipway" / "gguf" / f"{key}.gguf"


def ensure(folder: Path, gguf: Path, kind: str) -> None:
    """Write the GGUF file if missing, under a lock so that concurrent callers wait. Raises Refused."""
    if gguf.exists():
        return
    gguf.parent.mkdir(parents=True, exist_ok=True)
    with local_files.holding_lock(gguf.with_name(f".{gguf.name}.lock")):
        if not gguf.exists():
            for draft in gguf.parent.glob(f".{gguf.name}.*.draft"):  # drafts left by killed processes
                draft.unlink()
            write(folder, gguf, kind)


def read_config(folder: Path) -> ModelConfig:
    """Return the shape of the model in `folder`. Raises Refused for a missing, unsupported or inconsistent model."""
    try:
        config = model_config(model_files.load(folder))
        odd = differences(config, map(model_files.header, model_files.weight_files(folder)))
    except FileNotFoundError:
        raise Refused(f"{folder} is not a model folder: config.json is missing") from None
    except (ValueError, UnusableDocument) as error:
        raise Refused(f"{folder}: {error}") from None
    if wrong := vocabulary.problem_in(folder):
        odd.append(wrong)
    if odd:
        raise Refused(f"{folder}: {'; '.join(odd[:5])}")
    return config


def describe(writer: gguf.GGUFWriter, config: ModelConfig, kind: str) -> None:
    """Write the shape of the model as GGUF metadata."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(TYPES[kind][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, rows: int) -> None:
    """Write tokens, merges, special ids and the chat template. Raises Refused for an imported tokenizer."""
    words = tokenizers.load(folder)
    if words.chat is not None or words.has_pieces:
        raise Refused(
            f"{folder}: only tokenizers trained by Slipway can be converted to GGUF; use llama.cpp's converter"
        )
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    by_id = {number: token for token, number in raw["model"]["vocab"].items()}
    special = {one["id"]: one["content"] for one in raw["added_tokens"]}
    tokens, types = [], []
    for number in range(rows):
        is_special = number in special
        is_known = is_special or number in by_id
        tokens.append(special.get(number) or by_id.get(number) or f"[unused{number}]")
        kind = gguf.TokenType.CONTROL if is_special else gguf.TokenType.NORMAL if is_known else gguf.TokenType.UNUSED
        types.append(kind)
    merges = [one if isinstance(one, str) else " ".join(one) for one in raw["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(words.special(BOS))
    writer.add_eos_token_id(words.special(END))
    writer.add_pad_token_id(words.special(END))
    writer.add_add_bos_token(False)  # the chat template starts with BOS
    if template := tokenizer_files.template_of(folder):
        writer.add_chat_template(template)


def weights(folder: Path, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and float32 values of every parameter, one at a time. Raises Refused for an unknown dtype."""
    for file in model_files.weight_files(folder):
        with open(file, "rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header: Mapping[str, Any] = json.loads(opened.read(length))
        raw = np.memmap(file, np.uint8, "r", 8 + length)
        for name, one in header.items():
            if name == "__metadata__" or is_spare(name, config):
                continue
            if one["dtype"] not in WIDTHS:
                raise Refused(
                    f"{file}: {name} has the unsupported dtype {one['dtype']}. Import the model first: --init {folder}"
                )
            start, stop = one["data_offsets"]
            numbers: np.ndarray = raw[start:stop].view(WIDTHS[one["dtype"]])
            if one["dtype"] == "BF16":
                numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
            for feature in config.features:
                name = feature.decoder_name(name)
            yield name, numbers.astype(np.float32).reshape(one["shape"])


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from half-split to interleaved RoPE, as llama.cpp expects for `llama`."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, type_: gguf.GGMLQuantizationType) -> None:
    if weight.ndim == 1 or type_ == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, weight)
    else:
        writer.add_tensor(name, gguf.quants.quantize(weight, type_), raw_dtype=type_)
