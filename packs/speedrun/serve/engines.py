"""Serving engine for models with the parts of nanochat's speedrun."""

from serve.model_kinds import ModelKind

NANOCHAT = ModelKind(
    about="has parts of nanochat's speedrun, which only --engine torch supports",
    engines=("torch",),
)
