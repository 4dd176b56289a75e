"""The configuration of the phase polish, for every profile."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.config import PhaseConfig, Profile, as_phase


@dataclass(frozen=True, kw_only=True)
class PolishConfig(PhaseConfig):
    def with_sizes(self, sizes: Mapping[str, int]) -> PhaseConfig:
        steps = sizes.get("polish_steps", 0)
        return self.with_steps(steps) if steps else self


def phases(profile: Profile) -> Mapping[str, PhaseConfig]:
    """Return the phase with a tenth of the steps of sft."""
    sft = profile.phases["sft"]
    return {"polish": as_phase(PolishConfig, sft, phase="polish").with_steps(max(1, sft.steps // 10))}
