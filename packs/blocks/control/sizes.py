"""Sizes of the phase dlm: flags of a launch, and the settings that apply without a flag."""

from dataclasses import dataclass

from flows.specs.work import PhaseFlags
from infra.flags import flag
from infra.settings import PackSettings, row

DLM = "Phase dlm"


@dataclass(frozen=True, kw_only=True)
class DlmFlags(PhaseFlags):
    """Flags for the sizes; None selects the value of `DlmSettings`."""

    tokens: int | None = flag(
        None, "number of training tokens instead of the profile's steps (default: TOKENS)", group=DLM
    )
    block_size: int | None = flag(
        None, "tokens decoded together (default: BLOCK_SIZE, or the profile's)", group=DLM, unit="TOKENS"
    )
    batch_size: int | None = flag(
        None, "sequences per forward pass (default: BATCH_SIZE, or the profile's)", group=DLM, unit="N"
    )
    grad_accum: int | None = flag(
        None,
        "forward passes per optimizer step (default: GRAD_ACCUM, or the profile's)",
        group=DLM,
        unit="N",
    )


@dataclass(frozen=True, kw_only=True)
class DlmSettings(PackSettings):
    """Settings for the sizes; 0 keeps the size of the profile."""

    block_size: int = row("BLOCK_SIZE", "phase dlm: tokens decoded together; 0: as in the profile", "0")
    batch_size: int = row("BATCH_SIZE", "phase dlm: sequences per forward pass; 0: as in the profile", "0")
    grad_accum: int = row("GRAD_ACCUM", "phase dlm: forward passes per optimizer step; 0: as in the profile", "0")
    tokens: int = row("TOKENS", "phase dlm: number of training tokens; 0: as in the profile", "0")
