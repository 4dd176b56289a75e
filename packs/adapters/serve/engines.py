"""Serving engines that support adapters."""

from serve.model_kinds import ModelKind

ADAPTED = ModelKind(
    about="is an adapter; --engine torch merges the adapter. For other engines, serve the model of the training with "
    "--adapter NAME=ARTIFACT, or write a whole model: inv export --merge",
    engines=("torch",),
)
