"""Part of the GPU benchmark: training steps of stage bits2."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bench.gpu.setup import Bench, best_s, text_of
from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig
from packs.bits.trainer.objective import Bits
from trainer.config import as_phase
from trainer.loop import accumulate
from trainer.optim import Optimizer
from trainer.records.model_config import Ternary
from trainer.speed import training_setup


def measured(bench: Bench) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    plain = bench.phase("base")
    ternary = replace(plain.model, sub_norm=True, ternary=Ternary())
    bits = BitsConfig(warmup_steps=2)
    rows = plain.micro_rows * 2
    config = as_phase(BitsPhaseConfig, plain, phase="bits2", model=ternary, bits=bits, rows=rows, steps=4)
    model, _ = bench.model(config)
    optimizer, objective = Optimizer(model, config.optimizer), Bits(bits, model)
    make = text_of(config)
    with training_setup(model, config, bench.machine):

        def step() -> None:
            objective.set_step(1, 4)
            optimizer.zero_grad()
            accumulate(model, make(0), config.micro_rows, config.rows * config.sequence_len, objective)
            optimizer.clip()
            optimizer.step(1.0)

        seconds = best_s(bench, step)
    yield "bits2", {"tokens_per_s": config.rows * config.sequence_len / seconds}, ""
