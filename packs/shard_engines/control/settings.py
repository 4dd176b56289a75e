"""The settings of the pack: a Python interpreter with Ray."""

from dataclasses import dataclass

from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class ShardEngineSettings(PackSettings):
    ray_python: str = row(
        "SLIPWAY_RAY_PYTHON", "inv shard --engine ray: Python interpreter with the cluster's version of ray"
    )
