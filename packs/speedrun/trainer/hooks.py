"""Torch hooks of models with the parts of nanochat's speedrun: the trunk, the initial values, the size of KV caches."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from packs.speedrun.trainer.trunk import NanochatTrunk, cached_layers
from trainer.model.hooks import ModelHooks
from trainer.records.model_config import ModelConfig

FIRST = {"residual_scales": (1.15, 1.05), "embed_scales": (0.20, 0.05)}  # values of the first and of the last layer
BACKOUT = 0.2
MOST_GATE = 0.02  # gates begin slightly above neutral
SHARPNESS = 1.2  # gain of queries and of keys
EMBEDDING, HEAD = 0.8, 0.001  # standard deviations
UP = 0.4  # of the usual standard deviation
SMEAR = ("model.smear_gate.weight", "model.smear_scale", "model.backout_scale")
SHARES = {  # of `OptimizerConfig.scale_lr`
    "model.embed_scales": 1.0,
    "model.residual_scales": 0.01,
    **dict.fromkeys(SMEAR, 0.4),
}


class NanochatHooks(ModelHooks):
    """Hooks of the feature `nanochat`; see `ModelConfig.nanochat`."""

    def make_trunk(self, config: ModelConfig) -> nn.Module:
        return NanochatTrunk(config)

    def cached_layers(self, config: ModelConfig) -> int:
        return cached_layers(config)

    def rates(self, model: Any, config: Any) -> Mapping[str, float]:
        found = dict[str, float]()
        for name, _ in model.named_parameters():
            if ".value_embeds." in name and config.value_lr is not None:
                found[name] = config.value_lr
            if config.scale_lr is not None and (share := SHARES.get(name)):
                found[name] = share * config.scale_lr
            if config.smear_lr is not None and name in SMEAR:
                found[name] = config.smear_lr
        return found

    @torch.no_grad()
    def initialize(self, model: Any, generator: torch.Generator) -> None:
        """Initialize a decoder as nanochat does: the source is `GPT.init_weights` of July 2026."""
        width = model.config.hidden_size
        for name, one in model.named_parameters():
            first, _, last = name.rpartition(".")
            kind = first.rpartition(".")[2] if last == "weight" else last
            if kind in FIRST:
                one.copy_(torch.linspace(*FIRST[kind], len(one)))
            elif kind == "smear_scale":
                one.zero_()
            elif kind == "backout_scale":
                one.fill_(BACKOUT)
            elif kind in ("smear_gate", "value_gate"):
                nn.init.uniform_(one, 0.0, MOST_GATE, generator=generator)
            elif kind in ("q_norm", "k_norm"):
                one.fill_(SHARPNESS)
            elif ".value_embeds." in name:
                nn.init.uniform_(one, *bounds(width), generator=generator)
            elif kind == "embed_tokens" and not model.config.tie_word_embeddings:
                nn.init.normal_(one, std=EMBEDDING, generator=generator)
            elif kind == "lm_head":
                nn.init.normal_(one, std=HEAD, generator=generator)
            elif kind == "up_proj":
                one.mul_(UP)


def bounds(width: int) -> tuple[float, float]:
    """Return the bounds of a uniform distribution with standard deviation 1 / sqrt(width)."""
    most = (3 / width) ** 0.5
    return -most, most
