"""A model of full precision in the shape of one of 1.58 bits: its weights are kept, and norms are added to them.

In: a model, the shape. Out: a model of that shape. SubLN makes all that `o_proj` and `down_proj` read alike in size.
With gains of one, these matrices would read numbers several times smaller or larger than those that they have learnt
from, in every layer; so the gains of each norm begin as the size of what the matrix behind it reads without the norm.
It is measured over ids drawn at random, because a conversion has no text to read.
"""

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder, unfilled
from trainer.records.model_config import ModelConfig

NORMS = {"o_proj": "attn_sub_norm", "down_proj": "ffn_sub_norm"}  # by the matrix in front of which it stands
ROWS, TOKENS = 2, 256  # drawn to measure with


def converted(before: Decoder, shape: ModelConfig, dtype: torch.dtype) -> Decoder:
    """Return the model in a shape that has nothing more than its own but the norms of SubLN, and rounding."""
    model, weights = unfilled(shape, dtype, "cpu"), before.state_dict()
    if shape.sub_norm and not before.config.sub_norm:
        for name, size in read_sizes(before).items():
            block, _, matrix = name.rpartition(".")
            gains = f"{block}.{NORMS[matrix]}.weight"
            weights[gains] = torch.full(model.get_parameter(gains).shape, size)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def read_sizes(model: Decoder) -> dict[str, float]:
    """Return, by the names of all `o_proj` and `down_proj`, the root mean square of what a token gives them to read.

    It is the mean over tokens; one where it is nothing or no number, so that a norm is never switched off.
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
