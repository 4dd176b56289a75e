"""Export of a ternary model in the packed format of `transformers`: four symbols to a byte, a scale per matrix.

Converts the Hugging Face folder of the master weights to a folder that the bitnet quantiser of transformers loads
directly. `export.read` also reads the packed folder. Source: transformers.integrations.bitnet (`AutoBitLinear`,
quantization_mode offline).
"""

from pathlib import Path

import torch

from packs.bits.records.bitnet_layouts import PER_BYTE, ROUNDED
from packs.bits.trainer.ternary import layers_of, pack, ternary
from trainer.errors import Refused
from trainer.model import export
from trainer.model.huggingface import OURS, kind_of
from trainer.records.model_config import ModelConfig

OFFLINE = {**ROUNDED, "quantization_mode": "offline"}


def packed_problem(config: ModelConfig) -> str:
    """Return the reason why transformers cannot run the model in 2 bits; "" if supported."""
    if config.ternary is None:
        return "the matrices are not ternary"
    if config.blocks is not None:
        return "the model decodes in blocks, which transformers does not support"
    if kind_of(config) == OURS:
        return (
            "transformers does not support this shape: one scale per matrix, and SubLN without norms on "
            "queries and keys"
        )
    heads = (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim)
    if odd := [side for side in (config.hidden_size, config.intermediate_size, *heads) if side % PER_BYTE]:
        return f"{PER_BYTE} rows share a byte, and {odd[0]} is not a multiple of {PER_BYTE}"
    return ""


def write(source: Path, out: Path, dtype: torch.dtype) -> None:
    """Write the model in `source` to the new folder `out` in packed form.

    Raises Refused for an unsupported model and for an existing `out`.
    """
    source = export.folder_of_model(source)
    export.check_tokenizer(source)
    config = export.read_config(source)
    if problem := packed_problem(config):
        raise Refused(f"{source} cannot be packed: {problem}")
    if out.exists():
        raise Refused(f"{out} exists already")
    model = export.read(source)
    weights = dict(model.state_dict())
    for name, layer in layers_of(model).items():
        symbols, scale = ternary(layer.weight.detach())
        weights |= {f"{name}.weight": pack(symbols), f"{name}.weight_scale": scale.flatten()}
    export.write(out, config, weights, source, dtype, said={"quantization_config": OFFLINE})
