"""The folder layout of an experiment, as on a pod's volume, and summaries of the folders' content.

`Workspace` has a property per folder. This module reads manifests and never opens a shard.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data.errors import DataError
from data.manifest import MANIFEST, read_manifest
from infra.units import count, size

WORKSPACE = "folder of datasets, artifacts, runs, cache and hf_cache (default var/workspace)"
KINDS = ("datasets/train", "datasets/val", "artifacts/tokenizer", "runs", "cache")
"""Folders with a subfolder per experiment."""


@dataclass(frozen=True)
class Workspace:
    """The folders of an experiment under a root."""

    root: Path
    experiment: str

    def folder_of(self, kind: str) -> Path:
        return self.root / kind / self.experiment

    @property
    def train(self) -> Path:
        return self.folder_of("datasets/train")

    @property
    def val(self) -> Path:
        return self.folder_of("datasets/val")

    @property
    def tokenizer(self) -> Path:
        return self.folder_of("artifacts/tokenizer")

    @property
    def run(self) -> Path:
        return self.folder_of("runs")

    @property
    def text(self) -> Path:
        """Return the folder with links to the `train` and `val` shards, as every step expects."""
        return self.folder_of("cache") / "text"

    @property
    def store(self) -> Path:
        """Return the store from which the training reads its inputs, and to which the training writes the model."""
        return self.run / "artifacts"

    @property
    def board(self) -> Path:
        """Return the folder of TensorBoard event files."""
        return self.run / "tensorboard"

    @property
    def hub(self) -> Path:
        return self.root / "hf_cache"

    @property
    def folders(self) -> tuple[Path, ...]:
        return (*(self.folder_of(kind) for kind in KINDS), self.hub)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of each step: hub caches on the volume, drafts and checkpoints in the run's folder."""
        hub = {"HF_HOME": str(self.hub), "HF_DATASETS_CACHE": str(self.hub / "datasets")}
        return {**hub, "SLIPWAY_WORK": str(self.run)}

    def make(self) -> int:
        """Create missing folders and links; return the number of created folders."""
        new = [folder for folder in self.folders if not folder.is_dir()]
        for folder in new:
            folder.mkdir(parents=True)
        self.text.mkdir(exist_ok=True)
        for name, folder in (("train", self.train), ("val", self.val)):
            link = self.text / name
            if not link.is_symlink() or link.resolve() != folder.resolve():
                link.unlink(missing_ok=True)
                link.symlink_to(Path("../../../datasets", name, self.experiment))
        return len(new)


def manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of finished shards, or None without a valid manifest."""
    try:
        return read_manifest(folder)
    except DataError:
        return None


def experiments(root: Path) -> list[str]:
    """Return the sorted names of all experiments with at least one folder."""
    there = (path for kind in KINDS for path in (root / kind).glob("*") if path.is_dir())
    return sorted({path.name for path in there if not path.name.startswith(".")})


def order(folder: Path, root: Path) -> tuple[int, str]:
    kind = folder.parent.relative_to(root).as_posix()
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), folder.name)


def content(folder: Path, root: Path) -> str:
    """Return a summary of a folder: "missing", "empty", or content with file count and size."""
    if not folder.is_dir():
        return "missing"
    kind = folder.parent.relative_to(root).as_posix()
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    total = f"{count(len(files), 'file')}, {size(sum(path.stat().st_size for path in files))}"
    if not files:
        return "empty"
    if kind.startswith("datasets/"):
        done = manifest(folder)
        unfinished = "not finished" if (folder / MANIFEST).is_file() else f"no {MANIFEST}"
        shards = f"{count(len(done['shards']), 'shard')}, {done['total_lines']:,} lines" if done else unfinished
        return f"{shards}; {total}"
    if kind == "artifacts/tokenizer":
        # A missing or damaged configuration only hides the number of ids.
        with suppress(OSError, yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError):
            asked = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
            return f"{asked['vocab_size']:,} ids; {total}"
    if kind == "runs":
        made = sorted(path.parent.parent.name for path in folder.glob("artifacts/*_checkpoints/*/ARTIFACT.json"))
        return f"{', '.join(made) or 'nothing trained yet'}; {total}"
    return total
