"""Task files of a sharding job for several machines, in a folder that all machines share.

Each task (`rank-00000-of-00004`, ...) has a JSON file with its configuration, and writes a log, progress
records and an exit code:

    OUT/.engine/work.json       identity of the sharding job
                NAME.json       configuration of a task
                NAME.log        log output; NAME.records holds the progress records
                NAME.exit       exit code; missing while the task runs and after a kill
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.config import TextSpec
from data.errors import DataError, InputError
from data.manifest import MANIFEST, TOOL, write_json
from data.text.inputs import Share
from store import local_files, untrusted_input

ROOT = Path(__file__).resolve().parents[3]
HOME = ".engine"
TAIL_BYTES = 4096
LOOK_S = 0.2


@dataclass(frozen=True)
class ShardWork:
    """The tasks of a sharding job.

    `folder` receives the shards, `world` is the number of ranks, and `cpus` is the number of CPUs per rank.
    """

    folder: Path
    world: int
    cpus: int

    @property
    def home(self) -> Path:
        return self.folder / HOME

    def name(self, rank: int) -> str:
        return Share(rank=rank, world=self.world).folder

    def file(self, task: str, suffix: str) -> Path:
        return self.home / f"{task}.{suffix}"

    def code(self, task: str) -> int | None:
        """Return the exit code of a task, or None for a running or killed task."""
        with suppress(FileNotFoundError):
            return int(self.file(task, "exit").read_text(encoding="utf-8"))
        return None

    def unfinished_ranks(self) -> list[int]:
        """Return the unfinished ranks."""
        return [rank for rank in range(self.world) if self.code(self.name(rank)) is None]

    def failed_names(self) -> list[str]:
        """Return the names of ranks with a nonzero exit code."""
        return [name for name in map(self.name, range(self.world)) if self.code(name)]

    def clear_exit_codes(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            self.file(task, "exit").unlink(missing_ok=True)

    def last_log_line(self, task: str) -> str:
        """Return the last line of a task's log."""
        lines = _tail(self.file(task, "log")).splitlines()
        return lines[-1] if lines else "it said nothing"

    def documents(self) -> int:
        """Return the number of documents written by all ranks, according to their progress records."""
        return sum(_last_record(self.file(self.name(rank), "records")) for rank in range(self.world))


def begin(spec: TextSpec, inputs: Any, folder: Path, world: int, how: Mapping[str, Any]) -> ShardWork:
    """Create the task files, or resume the tasks of an earlier command with the same configuration.

    Args:
        spec: The sharding specification.
        inputs: Plain values describing the source; a change makes a new job.
        folder: Output folder of the shards.
        world: Number of ranks.
        how: Worker options for each rank.

    Raises:
        InputError: If `folder` holds shards outside of this job.
    """
    work = ShardWork(folder, world, how["workers"])
    parts = ("train", "val") if spec.val_ratio or spec.validation else (".",)
    ours = {folder / part / work.name(rank) for part in parts for rank in range(world)}
    patterns = [f"{part}/{form}" for part in (".", "train", "val") for form in ("shard-*", "rank-*")]
    if strangers := sorted({path for pattern in patterns for path in folder.glob(pattern)} - ours):
        raise InputError(
            f"{strangers[0]}: this file does not belong to a world of {world}; remove the file, or choose "
            "another folder with --out"
        )
    about = json.loads(json.dumps({"tool": TOOL, "world": world, "spec": asdict(spec), "inputs": inputs}))
    if _read(work.file("work", "json")) == about:
        work.clear_exit_codes(work.failed_names())  # Failed tasks run again.
        return work
    for path in work.home.iterdir():
        if path.suffix != ".lock":
            path.unlink()
    for part in parts:  # The ranks are about to replace the shards in the manifest.
        (folder / part / MANIFEST).unlink(missing_ok=True)
    for rank in range(world):
        mine = {**asdict(spec), **how, "rank": rank, "world": world}
        write_json(work.file(work.name(rank), "json"), {"out": str(folder), "spec": mine})
    write_json(work.file("work", "json"), about)
    return work


@contextmanager
def locked(path: Path, wait_s: float = 0) -> Iterator[None]:
    """Hold the lock file `path`. Raise DataError if a different process still holds the lock after `wait_s` seconds."""
    busy = DataError(f"{path}: another process holds the lock")
    # On a file system without locks, only the engine prevents a second run of a task.
    with local_files.holding_lock(path, busy, wait_s, look_s=LOOK_S, must_lock=False):
        yield


def _read(path: Path) -> Any:
    with suppress(FileNotFoundError, ValueError):
        return untrusted_input.parse(untrusted_input.content(path))
    return None


def _tail(path: Path) -> str:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""


def _last_record(path: Path) -> int:
    for line in reversed(_tail(path).splitlines()):
        with suppress(ValueError):  # an incomplete line
            record = untrusted_input.mapping(line)
            if record.get("kind") in ("progress", "result"):
                return record.get("documents", record.get("done", 0))
    return 0


def task_words(work: ShardWork, name: str) -> list[str]:
    return [sys.executable, "-m", "packs.shard_engines.data.task", str(work.home), name]
