"""Setting of the pack `slurm`: the path of the inventory of clusters."""

from dataclasses import dataclass
from pathlib import Path

from infra.settings import PackSettings, row

CLUSTERS = "slurm_clusters.yaml"


@dataclass(frozen=True, kw_only=True)
class SlurmSettings(PackSettings):
    clusters: Path = row("SLIPWAY_CLUSTERS", "inventory of Slurm clusters, reached by SSH", CLUSTERS)
