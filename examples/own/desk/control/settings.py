"""Settings of the pack, and a flag of launches: the number of steps of the phase polish."""

from dataclasses import dataclass

from flows.specs.work import PhaseFlags
from infra.flags import flag
from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class DeskSettings(PackSettings):
    desk_contact: str = row("DESK_CONTACT", "desk: who looks after our machines")
    polish_steps: int = row("POLISH_STEPS", "phase polish: optimizer steps; 0: as in the profile", "0")


@dataclass(frozen=True, kw_only=True)
class PolishFlags(PhaseFlags):
    polish_steps: int | None = flag(
        None, "optimizer steps (default: POLISH_STEPS, or the profile's)", group="Phase polish"
    )
