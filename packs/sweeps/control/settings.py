"""Setting of the pack `sweeps`: the path of the user's own sweeps."""

from dataclasses import dataclass
from pathlib import Path

from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class SweepSettings(PackSettings):
    sweeps: Path = row("SLIPWAY_SWEEPS", "inv sweep: Python file with sweeps of your own", "sweeps.py")
