"""Serving engines that support adapters."""

from serve.model_kinds import ModelKind

ADAPTED = ModelKind(
    about="is an adapter; --engine torch supports adapters. For other engines write a whole model: inv export --merge",
    engines=("torch",),
)
