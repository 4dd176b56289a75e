"""The folder and the lease of a sweep, apart from the sweeps themselves: `status` asks for sweeps at every look."""

from pathlib import Path

from infra.settings import Settings

LEASE = "sweep:"


def folder_of(name: str, settings: Settings) -> Path:
    """Return the results folder of the sweep with this name."""
    return settings.homes.parent / "sweeps" / name
