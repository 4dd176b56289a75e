"""Plan notes for 1.58-bit models, available before training starts. No torch."""

from collections.abc import Sequence

from packs.bits.records.bits_config import BitsPhaseConfig
from trainer.config import ImportSpec, PhaseConfig
from trainer.records.phase_registry import listed


def notes(phases: Sequence[PhaseConfig], init: ImportSpec | None) -> tuple[str, ...]:
    """Return warnings about ternary models that GGUF cannot hold, and about stages without a ternary model."""
    found = dict.fromkeys(phase.model for phase in phases if phase.model.ternary)
    is_foreign = init is not None and (init.own_chat or init.has_pieces)
    own = f"the tokenizer of {init.source} is not a Slipway tokenizer" if init is not None and is_foreign else ""
    said = [problem for model in found if (problem := model.gguf_problem() or own)]
    whole = [one.phase for one in phases if isinstance(one, BitsPhaseConfig) and one.bits and not one.model.ternary]
    return (
        *(
            f"a GGUF file cannot be made of this model ({one}); Slipway's own engine runs the model: inv chat"
            for one in said
        ),
        *(
            f"{listed(whole)}: the model has no `ternary` setting; training continues in full precision"
            for _ in whole[:1]
        ),
    )
