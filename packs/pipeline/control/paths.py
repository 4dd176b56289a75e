"""The workspace folders that a training reads, for `inv config --config`."""

from collections.abc import Iterator
from pathlib import Path

from infra.settings import Settings
from packs.pipeline.control.settings import PipelineSettings
from packs.pipeline.control.workspace import Workspace, content, manifest


def found(settings: Settings) -> Iterator[tuple[str, Path, str]]:
    """Yield name, path and state of each folder; unfinished shards count as missing."""
    ours = settings.for_pack(PipelineSettings)
    space = Workspace(ours.workspace, ours.experiment)
    for name, folder in (("train shards", space.train), ("val shards", space.val)):
        yield name, folder, "found" if manifest(folder) else content(folder, space.root).partition(";")[0]
    is_there = (space.tokenizer / "tokenizer.json").exists()
    yield "tokenizer", space.tokenizer, "found" if is_there else "missing"
