"""Serving engines that support 1.58-bit models."""

from serve.model_kinds import ModelKind

TERNARY = ModelKind(
    about="is a model of 1.58 bits; --engine llama.cpp and --engine torch support such models",
    engines=("llama.cpp", "torch"),
)
