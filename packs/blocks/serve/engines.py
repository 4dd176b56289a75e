"""The engine that computes with models that decode in blocks."""

from serve.model_kinds import ModelKind

IN_BLOCKS = ModelKind(about="decodes in blocks, which only --engine torch does", engines=("torch",))
