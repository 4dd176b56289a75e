"""The flags of a training that select adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flows.specs.work import TRAINING, PhaseFlags
from infra.flags import flag

ADAPTED = "packs.adapters.records.lora_config:with_adapter"


@dataclass(frozen=True, kw_only=True)
class AdapterFlags(PhaseFlags):
    """The flags; --set sft.adapter.FIELD sets the options."""

    change: ClassVar[Mapping[str, str]] = dict.fromkeys(("adapter", "adapter-from"), ADAPTED)
    resolve: ClassVar[str] = "packs.adapters.control.imported_adapter:resolve"
    adapter: str = flag(
        "",
        "lora: mid, sft, dpo, rl and opd train an adapter beside the frozen model; qlora: the same with the matrices "
        "of the model in 4 bits; options: --set sft.adapter.rank=16",
        group=TRAINING,
    )
    adapter_from: str = flag(
        "",
        "continue an adapter of the start model: a folder in the format of PEFT, hf://user/repo[@revision], or an "
        "artifact of the store; rank, alpha and targets are the adapter's",
        group=TRAINING,
    )
