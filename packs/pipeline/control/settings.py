"""The settings of `inv pipeline` and `inv tree`."""

from dataclasses import dataclass
from pathlib import Path

from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class PipelineSettings(PackSettings):
    experiment: str = row(
        "RUN_EXPERIMENT",
        "inv pipeline, inv tree: name of the experiment and of the experiment's folders",
        "runpod-2b",
    )
    run_config: str = row("RUN_CONFIG", "inv pipeline: recipe of model and training", "runpod_1b")
    run_shard: int = row("RUN_SHARD", "inv pipeline: 1 makes text shards, 0 uses existing ones", "1")
    workspace: Path = row("SLIPWAY_WORKSPACE", "inv pipeline: root of the folders", "var/workspace")
