"""Checkpoints that are whole or not there.

In: named tensors and facts of a step. Out: `step-<9 digits>/`, immutable, with `MANIFEST.json` (size and sha256 of
each file) written last; or the newest of them that verifies.

A save is built in `.tmp-<step>-<uuid>`, synced, read back, renamed in. Where a model is cut over processes each writes
its part there, files of its own, and the first one finishes; a tensor is its parts in the order of ranks, joined along
the first dimension, so that any number of processes can read it. What does not verify becomes `.bad-*`; what is removed
is `.trash-*` first. Only one run writes a folder at a time: `locked()`.
"""

import errno
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from store import local_files, outside
from store.run_sync.run_folder import Damaged, check_files
from trainer import tensor_file
from trainer.config import Keeping
from trainer.errors import CheckpointError
from trainer.tensor_file import Written

log = logging.getLogger(__name__)
T = TypeVar("T")

SCHEMA = 1
MANIFEST = "MANIFEST.json"
KINDS = ("model", "optimizer", "rng", "source")
STEP = re.compile(r"step-\d{9}")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, None}  # to try again at once would not help


class NonFinite(CheckpointError):
    """A parameter is NaN or infinite: never published."""


class DiskFull(OSError):
    """Less free space than a save needs, seen before writing."""


@dataclass(frozen=True)
class Checkpoint:
    """One whole checkpoint: the folder verified, its facts read."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    def tensors(self, kind: str) -> Mapping[str, Tensor]:
        """Return the tensors of one of KINDS, {} where there is none; each is read when it is asked for.

        Raises CheckpointError.
        """
        from safetensors import SafetensorError

        assert kind in KINDS, kind
        names = sorted(file["path"] for file in self.manifest["files"] if file["path"].startswith(f"{kind}-rank"))
        try:
            return tensor_file.Joined([self.folder / name for name in names])
        except SafetensorError as error:
            raise CheckpointError(f"{self.folder}: its {kind} files are not safetensors files: {error}") from None

    def link_to(self, folder: Path, kinds: Collection[str]) -> None:
        """Make a checkpoint of those KINDS alone, of the same files, in a folder that is not there. Raises OSError."""
        folder.mkdir(parents=True)
        files = [one for one in self.manifest["files"] if one["path"].rpartition("-rank")[0] in kinds]
        for one in files:
            os.link(self.folder / one["path"], folder / one["path"])
        manifest = {name: value for name, value in self.manifest.items() if name in kinds or name not in KINDS}
        _write_manifest(folder / MANIFEST, {**manifest, "files": files})


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being made. What fails for another reason than a full disk is done afresh, once."""

    folder: Path
    target: Path

    def write(
        self, rank: int, tensors: Mapping[str, Mapping[str, Tensor]], rest: Callable[[], None] = lambda: None
    ) -> list[Written]:
        """Write the part of one process: a file of each kind, synced and read back from the disk. Raises OSError.

        rest: called after every block.
        """
        paths = {kind: self.folder / file_of(kind, rank) for kind in tensors}

        def once() -> list[Written]:
            files = [tensor_file.write(paths[kind], named, rest) for kind, named in tensors.items()]
            for file in files:
                if tensor_file.sha256(self.folder / file.path, True, rest) != file.sha256:
                    raise OSError(errno.EIO, f"{self.folder / file.path} reads back otherwise than it was written")
            return files

        return self._twice(once, list(paths.values()))

    def finish(self, files: Sequence[Written], world: int, facts: Mapping[str, Any]) -> Checkpoint:
        """Write the manifest, as the parts of all `world` are written and listed, and rename the draft.

        Raises OSError.
        """
        about = {"schema": SCHEMA, "step": step_of(self.target), "world": world, "finite": True, "timestamp": _now()}
        manifest = {**facts, **about, "files": [asdict(file) for file in files]}
        path = self.folder / MANIFEST

        def once() -> None:
            _write_manifest(path, manifest)
            _sync_folder(self.folder)
            self.folder.rename(self.target)

        self._twice(once, [path])
        return Checkpoint(self.target, manifest)

    def abandon(self) -> None:
        """Remove the draft; what stays although it should go is swept when the run begins again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _twice(self, once: Callable[[], T], made: Sequence[Path]) -> T:
        """Write, and once more after an error. No descriptor is ever synced again: what was `made` goes first."""
        try:
            return once()
        except OSError as error:
            if error.errno in FULL:
                raise
            log.warning("step %d: %s; written once more", step_of(self.target), error)
        for path in made:
            path.unlink(missing_ok=True)
        return once()


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, keeping: Keeping, acknowledged: Path | None = None) -> None:
        """Open a run's folder of checkpoints.

        acknowledged: the file in which a pod's courier lists what is in the store.
        """
        self.folder, self.keeping, self.acknowledged = folder, keeping, acknowledged
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder as its one writer; sweep what a killed one left. Raises CheckpointError if it is locked."""
        busy = CheckpointError(f"{self.folder}: another trainer is writing here; stop it first")
        with local_files.held(self.folder / "LOCK", busy):
            for leftover in (*self.folder.glob(".tmp-*"), *self.folder.glob(".trash-*")):
                shutil.rmtree(leftover)
            yield

    def steps(self) -> list[Path]:
        """Return the folders of the steps, oldest first; not verified."""
        return sorted(path for path in self.folder.iterdir() if STEP.fullmatch(path.name))

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> Checkpoint:
        """Write the checkpoint of `step` (how many are done), then remove the oldest beyond what is kept.

        tensors: by kind. A whole checkpoint of that step is returned as it is.
        Raises OSError (disk full: DiskFull or ENOSPC) with nothing left behind, NonFinite.
        """
        require_finite(step, tensors["model"])
        draft = self.begin(step, sum(t.nbytes for kind in tensors.values() for t in kind.values()))
        if isinstance(draft, Checkpoint):
            return draft
        try:
            return self.finish(draft, draft.write(0, tensors), 1, facts)
        except BaseException:
            draft.abandon()  # the first error is the one to report
            raise

    def last_config(self) -> dict[str, Any]:
        """Return the configuration that the newest checkpoint was made with, which is not verified; {} without one."""
        for folder in reversed(self.steps()):
            try:
                return dict(_read_manifest(folder).get("config") or {})
            except (OSError, ValueError):
                continue  # a run that goes on from it says what is wrong with it
        return {}

    def has(self, step: int) -> bool:
        """Return whether anything exists under that name; it is not verified."""
        return self._target(step).exists()

    def _target(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def begin(self, step: int, num_bytes: int) -> Draft | Checkpoint:
        """Return the draft of a checkpoint of `step`, or the whole one that is there already.

        Raises OSError, DiskFull.
        """
        target = self._target(step)
        if target.exists():
            if not problem_of(target):
                return Checkpoint(target, _read_manifest(target))
            self._set_aside(target)
        self._require_space(num_bytes)
        for is_last in (False, True):
            draft = Draft(self.folder / f".tmp-{step:09d}-{uuid.uuid4().hex[:8]}", target)
            try:
                draft.folder.mkdir()
                break
            except OSError as error:
                if is_last or error.errno in FULL:
                    raise
                log.warning("step %d: %s; written once more", step, error)
        return draft

    def finish(self, draft: Draft, files: Sequence[Written], world: int, facts: Mapping[str, Any]) -> Checkpoint:
        """Publish it, now that all parts are there, and remove the oldest beyond what is kept. Raises OSError."""
        made = draft.finish(files, world, facts)
        _sync_folder(self.folder)
        self._point_at(made.folder)
        self._tidy()
        return made

    def _tidy(self) -> None:
        """Keep the newest few, and of those that are known to be elsewhere the newest two: the way back, if need be."""
        steps = self.steps()
        kept = {*steps[-max(2, self.keeping.keep) :], *[one for one in steps if one.name in self._elsewhere()][-2:]}
        for old in steps:
            if old not in kept:
                remove(old)

    def _elsewhere(self) -> set[str]:
        """Return the names of our checkpoints that whoever carries them to a store has read back there."""
        try:
            known = outside.load(self.acknowledged) if self.acknowledged else {}
        except (OSError, ValueError):  # it is written by somebody else, and only ever asks for more to be kept
            return set()
        return {Path(name).name for name in known if Path(name).parent.name == self.folder.name}

    def newest(self) -> Checkpoint | None:
        """Return the newest that verifies; bad ones met on the way are set aside. None: nothing was ever saved.

        Raises CheckpointError, naming them, when some exist and none is whole: a lost run must not start afresh.
        """
        problems = []
        for folder in reversed(self.steps()):
            problem = problem_of(folder)
            if not problem:
                return Checkpoint(folder, _read_manifest(folder))
            log.warning("checkpoint of step %d unreadable (%s), trying the one before it", step_of(folder), problem)
            problems.append(f"{self._set_aside(folder).name} ({problem})")
        if not problems:  # met by an earlier start, which set them aside
            problems = sorted((path.name for path in self.folder.glob(".bad-*")), reverse=True)
        if problems:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole: {', '.join(problems)}; "
                f"put a good copy back as step-<9 digits>, or remove the folder to begin again"
            )
        return None

    def _set_aside(self, folder: Path) -> Path:
        return folder.rename(folder.with_name(f".bad-{folder.name}-{uuid.uuid4().hex[:8]}"))

    def _require_space(self, size: int) -> None:
        """Raise DiskFull where too little is free.

        A reserve of 0 asks for nothing: tests meet a full disk while writing.
        """
        reserve = self.keeping.reserve_bytes
        free = shutil.disk_usage(self.folder).free
        if reserve and free < 1.2 * size + reserve:
            raise DiskFull(f"{free} bytes free; a save of {size} must leave {reserve}")

    def _point_at(self, target: Path) -> None:
        """Point LATEST at a checkpoint, as a hint for people.

        What counts is the manifest, so a full disk here is no failed save.
        """
        draft = self.folder / ".LATEST.draft"
        try:
            draft.write_text(target.name + "\n", encoding="utf-8")
            draft.replace(self.folder / "LATEST")
        except OSError as error:
            log.warning("%s: LATEST not updated: %s", self.folder, error)


def problem_of(folder: Path) -> str:
    """Return the fault in a checkpoint, in words; "" when every byte is as its manifest says."""
    try:
        check_files(folder)
        if (schema := _read_manifest(folder).get("schema")) != SCHEMA:
            return f"schema {outside.shown(schema)}, this trainer reads {SCHEMA}"
    except FileNotFoundError:
        return "no manifest"
    except (Damaged, OSError) as error:
        return str(error)
    return ""


def open_final(folder: Path) -> Checkpoint:
    """Return the one checkpoint inside a published artifact. Raises CheckpointError."""
    found = [path for path in folder.iterdir() if STEP.fullmatch(path.name)]
    if len(found) != 1:
        raise CheckpointError(f"{folder}: expected one step-<9 digits> folder, found {len(found)}")
    if problem := problem_of(found[0]):
        raise CheckpointError(f"{found[0]}: {problem}")
    return Checkpoint(found[0], _read_manifest(found[0]))


def masters(folder: Path) -> Mapping[str, Tensor] | None:
    """Return the float32 parameters of a published phase; None for a folder without one. Raises CheckpointError."""
    has_some = folder.is_dir() and any(STEP.fullmatch(path.name) for path in folder.iterdir())
    return open_final(folder).tensors("model") if has_some else None


def file_of(kind: str, rank: int) -> str:
    return f"{kind}-rank{rank:05d}.safetensors"


def require_finite(step: int, parameters: Mapping[str, Tensor]) -> None:
    """Raise NonFinite for a parameter that is no number.

    Looks at the smallest and the largest of each: one pass, no copy, and a GPU is waited for once.
    """
    ends = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in parameters.items() if tensor.numel()}
    finite = torch.stack(list(ends.values())).isfinite().all(dim=1).tolist() if ends else []
    for name, is_finite in zip(ends, finite, strict=True):
        if not is_finite:
            raise NonFinite(f"step {step}: {name} is not finite; this checkpoint is not written")


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def remove(folder: Path) -> None:
    """Remove a folder: out of sight first, so that a kill half-way never leaves half a checkpoint under its name."""
    trash = folder.rename(folder.with_name(f".trash-{uuid.uuid4().hex}"))
    shutil.rmtree(trash)


def _read_manifest(folder: Path) -> dict[str, Any]:
    return outside.load(folder / MANIFEST)


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    with open(path, "x", encoding="utf-8") as words:
        json.dump(manifest, words, indent=1, sort_keys=True)
        words.flush()
        os.fsync(words.fileno())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
