"""Conversion of a full-precision model to the shape of a 1.58-bit model: weights stay, SubLN norms are added.

SubLN normalises the inputs of `o_proj` and `down_proj`. With gains of one, both matrices would read inputs several
times smaller or larger than in training, in every layer. So each gain starts as the root mean square of the matrix
input before conversion. Random token ids provide these inputs, because a conversion reads no text.
"""

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder, uninitialized_decoder
from trainer.records.model_config import ModelConfig

NORMS = {"o_proj": "attn_sub_norm", "down_proj": "ffn_sub_norm"}  # matrix -> norm in front of the matrix
ROWS, TOKENS = 2, 256  # size of the random batch for the measurement


def converted(before: Decoder, shape: ModelConfig, dtype: torch.dtype) -> Decoder:
    """Return the model in `shape`, which may add only SubLN norms and rounding to the shape of the model."""
    model, weights = uninitialized_decoder(shape, dtype, "cpu"), before.state_dict()
    if shape.sub_norm and not before.config.sub_norm:
        for name, size in read_sizes(before).items():
            block, _, matrix = name.rpartition(".")
            gains = f"{block}.{NORMS[matrix]}.weight"
            weights[gains] = torch.full(model.get_parameter(gains).shape, size)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def read_sizes(model: Decoder) -> dict[str, float]:
    """Return the root mean square of the input of each `o_proj` and `down_proj`, by module name.

    The value is the mean over tokens of the root mean square of a token. A value of zero or not finite becomes 1.0,
    because a gain of zero would disable the norm.
    """
    config, found = model.config, dict[str, float]()

    def looking(name: str) -> None:
        def look(_: nn.Module, given: tuple[Tensor]) -> None:
            size = float(given[0].float().square().mean(dim=-1).sqrt().mean())
            found[name] = size if 0 < size < float("inf") else 1.0

        hooks.append(modules[name].register_forward_pre_hook(look))

    modules, hooks = dict(model.named_modules()), list[torch.utils.hooks.RemovableHandle]()
    for name in modules:
        if name.rpartition(".")[2] in NORMS:
            looking(name)
    length = min(TOKENS, config.max_position_embeddings)
    ids = torch.randint(config.vocab_size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    try:
        model.hidden(ids.to(model.head.device))
    finally:
        for one in hooks:
            one.remove()
    return found
