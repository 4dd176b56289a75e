"""Phase records of 1.58-bit training: conversion, distillation by layers, pre-training, distillation. No torch."""

from dataclasses import replace

from trainer.records.phase_registry import TALK, TEXT, Phase

BITS1 = Phase(
    name="bits1",
    folder="bits1_checkpoints",
    module="packs.bits.trainer.stages",
    config="packs.bits.records.bits_config:BitsPhaseConfig",
    follows=("base",),
    reads=TEXT,
    version=2,
    trains=False,
    alias="1",
    family="stages of 1.58 bits",
    feature="ternary",
    toy="examples/jobs/profiles/toy.yaml",
    toy_options=("bits.saliency", "model.ternary", "model.sub_norm"),
)
BITS1_9 = replace(
    BITS1,
    name="bits1.9",
    folder="bits1.9_checkpoints",
    follows=("bits1",),
    trains=True,
    teacher=("base",),
    optional=True,
    takes_init=False,
    alias="1.9",
)
BITS2 = replace(
    BITS1,
    name="bits2",
    folder="bits2_checkpoints",
    follows=("bits1.9", "bits1"),
    trains=True,
    takes_init=False,
    alias="2",
)
BITS3 = replace(
    BITS2,
    name="bits3",
    folder="bits3_checkpoints",
    follows=("bits2", "bits1.9", "bits1"),
    reads=TALK,
    teacher=("sft", "mid", "base"),
    alias="3",
)
