"""The flag of a training that selects adapters."""

from dataclasses import dataclass
from typing import ClassVar

from flows.specs.work import TRAINING, PhaseFlags
from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class AdapterFlags(PhaseFlags):
    """The flag; --set sft.adapter.FIELD sets the options."""

    change: ClassVar[str] = "packs.adapters.records.lora_config:with_adapter"
    adapter: str = flag(
        "",
        "lora: mid and sft train an adapter beside the frozen model; options: --set sft.adapter.rank=16",
        group=TRAINING,
    )
