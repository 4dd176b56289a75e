"""Serving engine for block-decoding models."""

from serve.model_kinds import ModelKind

IN_BLOCKS = ModelKind(about="decodes in blocks, which only --engine torch supports", engines=("torch",))
