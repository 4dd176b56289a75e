"""The phase opd: the loop of rl, in which a teacher judges each token of the model's own answers."""

from pathlib import Path
from typing import Any

from data.config import StepContext
from packs.preferences.records.opd_config import OpdConfig
from packs.preferences.trainer.judged import Judged, JudgedByServer
from store.artifacts import vocabulary
from store.artifacts.artifacts import Store
from store.untrusted_input import UnusableDocument
from trainer.config import CheckpointOptions
from trainer.errors import Refused
from trainer.import_model import fetch
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.parallel.process_group import Ranks
from trainer.phases import rl
from trainer.records.phase_registry import TEACHER
from trainer.run import PhaseRun

STORE = "store://"


def run(config: OpdConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train from the model of the preceding phase and publish; return the result record of the first process."""
    if config.is_served:
        return rl.run(config, making, keeping, ranks, JudgedByServer, no_model)
    return rl.run(config, making, keeping, ranks, Judged, open_teacher)


def no_model(phase: PhaseRun) -> None:
    """Return no model beside the student."""


def open_teacher(phase: PhaseRun) -> Decoder:
    """Return the teacher. Raises Refused for a model with another tokenizer, StoreError."""
    teacher = phase.config.teacher if isinstance(phase.config, OpdConfig) else None
    if teacher is None:
        raise Refused(f"{phase.config.phase}: the configuration has no teacher; use --teacher")
    if teacher.source.startswith(STORE):
        name = teacher.source.removeprefix(STORE)
        folder = export.folder_of_model(Store(phase.making.store).path(name, teacher.revision))
    else:
        folder = fetch(teacher)
    check(teacher.source, folder, phase)
    phase.folders[TEACHER] = folder
    return phase.load_frozen_model(TEACHER)


def check(name: str, folder: Path, phase: PhaseRun) -> None:
    """Raise Refused for a teacher with another tokenizer, or with fewer positions than `sequence_len` of the phase."""
    own = phase.tokenizer_folder
    try:
        if not (folder / vocabulary.TOKENIZER).is_file():
            raise Refused(f"the teacher {name} has no {vocabulary.TOKENIZER}, so the ids cannot be compared")
        wrong = vocabulary.difference(folder, own) or vocabulary.difference(own, folder)
    except UnusableDocument as error:
        raise Refused(f"the teacher {name}: {error}") from None
    if wrong:
        raise Refused(
            f"the teacher {name} has another tokenizer than the model in training: {wrong}. Ids must have the same "
            "meaning in both; use a teacher of the same family"
        )
    longest = export.read_config(folder).max_position_embeddings
    if phase.config.sequence_len > longest:
        raise Refused(
            f"sequence_len is {phase.config.sequence_len}, and the teacher {name} has {longest} positions; set "
            f"{phase.config.phase}.sequence_len to at most {longest}"
        )
