"""The engines that compute with models of 1.58 bits."""

from serve.model_kinds import ModelKind

TERNARY = ModelKind(
    about="is a model of 1.58 bits; --engine llama.cpp and --engine torch compute with those",
    engines=("llama.cpp", "torch"),
)
