"""The flags of a training that name the pairs of the phase dpo and the teacher of the phase opd."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flows.specs.work import TEXT, TRAINING, PhaseFlags
from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class PreferenceFlags(PhaseFlags):
    """The flags; --set dpo.FIELD sets the loss and its options, --set opd.rl.FIELD the options of the answers."""

    change: ClassVar[Mapping[str, str]] = {
        "pairs": "packs.preferences.control.mixture:with_pairs",
        "teacher": "packs.preferences.control.mixture:with_teacher",
    }
    resolve: ClassVar[str] = "packs.preferences.control.teacher:resolve"
    pairs: str = flag(
        "",
        "dpo: preferred and rejected answers, instead of the profile's: a .jsonl, a .parquet or hf://user/name, or "
        "several with weights: mine.jsonl=0.5,hf://user/name:train_prefs=0.5",
        group=TEXT,
        unit="SOURCES",
    )
    teacher: str = flag(
        "",
        "opd: the model that judges each token of the answers: an artifact of the store, hf://user/repo[@revision], "
        "or a server with vLLM, http://HOST:PORT/v1#MODEL",
        group=TRAINING,
    )
