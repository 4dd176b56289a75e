"""The flag of a training that names the pairs of the phase dpo."""

from dataclasses import dataclass
from typing import ClassVar

from flows.specs.work import TEXT, PhaseFlags
from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class PairFlags(PhaseFlags):
    """The flag; --set dpo.FIELD sets the loss and its options."""

    change: ClassVar[str] = "packs.preferences.control.mixture:with_pairs"
    pairs: str = flag(
        "",
        "dpo: preferred and rejected answers, instead of the profile's: a .jsonl, a .parquet or hf://user/name, or "
        "several with weights: mine.jsonl=0.5,hf://user/name:train_prefs=0.5",
        group=TEXT,
        unit="SOURCES",
    )
