"""Atomic checkpoints: a `step-<9 digits>/` folder is either complete and verified, or absent.

A save builds `.tmp-<step>-<uuid>`, syncs the files, reads them back, writes `MANIFEST.json` (size and sha256 of each
file) last and renames the folder. A checkpoint is immutable. Of a sharded model every process writes its own files and
the first process finishes; readers join the shards in rank order along the first dimension, so any number of processes
can load the checkpoint. A checkpoint failing verification is renamed to `.bad-*`; removal renames to `.trash-*` first.
`Checkpoints.locked` admits a single writing run per folder.
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

from store import local_files, untrusted_input
from store.run_sync.run_folder import DamagedCheckpoint, check_files
from trainer import tensor_file
from trainer.config import CheckpointOptions
from trainer.errors import CheckpointError
from trainer.tensor_file import WrittenFile

log = logging.getLogger(__name__)
T = TypeVar("T")

SCHEMA = 1
MANIFEST = "MANIFEST.json"
KINDS = ("model", "optimizer", "rng", "source")
STEP = re.compile(r"step-\d{9}")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, None}  # an immediate retry would not help


class NonFinite(CheckpointError):
    """A parameter is NaN or infinite; such a checkpoint is never written."""


class DiskFull(OSError):
    """The disk has less free space than a save needs; checked before writing."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint folder with the parsed manifest."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    def tensors(self, kind: str) -> Mapping[str, Tensor]:
        """Return the tensors of a kind (of KINDS) as a lazy mapping, empty when the checkpoint has no such files.

        Each tensor is read on access. Raises CheckpointError for files in a format other than safetensors.
        """
        from safetensors import SafetensorError

        assert kind in KINDS, kind
        names = sorted(file["path"] for file in self.manifest["files"] if file["path"].startswith(f"{kind}-rank"))
        try:
            return tensor_file.JoinedTensors([self.folder / name for name in names])
        except SafetensorError as error:
            raise CheckpointError(f"{self.folder}: the {kind} files are not safetensors files: {error}") from None

    def link_to(self, folder: Path, kinds: Collection[str]) -> None:
        """Create a checkpoint with only the given KINDS in a new folder, as hard links. Raises OSError."""
        folder.mkdir(parents=True)
        files = [one for one in self.manifest["files"] if one["path"].rpartition("-rank")[0] in kinds]
        for one in files:
            os.link(self.folder / one["path"], folder / one["path"])
        manifest = {name: value for name, value in self.manifest.items() if name in kinds or name not in KINDS}
        _write_manifest(folder / MANIFEST, {**manifest, "files": files})


@dataclass(frozen=True)
class Draft:
    """A checkpoint being written. Each operation is retried once after an error other than a full disk."""

    folder: Path
    target: Path

    def write(
        self, rank: int, tensors: Mapping[str, Mapping[str, Tensor]], rest: Callable[[], None] = lambda: None
    ) -> list[WrittenFile]:
        """Write the files of a process, a file per kind, and verify them by reading back from disk. Raises OSError.

        rest: called after every block, to throttle the writer.
        """
        paths = {kind: self.folder / file_of(kind, rank) for kind in tensors}

        def once() -> list[WrittenFile]:
            files = [tensor_file.write(paths[kind], named, rest) for kind, named in tensors.items()]
            for file in files:
                if tensor_file.sha256(self.folder / file.path, True, rest) != file.sha256:
                    raise OSError(errno.EIO, f"{self.folder / file.path} contains other bytes than the trainer wrote")
            return files

        return self._with_retry(once, list(paths.values()))

    def finish(self, files: Sequence[WrittenFile], world: int, facts: Mapping[str, Any]) -> Checkpoint:
        """Write the manifest and rename the draft to the target. Raises OSError.

        Call after all `world` processes have written their parts; `files` lists the files of all processes.
        """
        about = {"schema": SCHEMA, "step": step_of(self.target), "world": world, "finite": True, "timestamp": _now()}
        manifest = {**facts, **about, "files": [asdict(file) for file in files]}
        path = self.folder / MANIFEST

        def once() -> None:
            _write_manifest(path, manifest)
            _sync_folder(self.folder)
            self.folder.rename(self.target)

        self._with_retry(once, [path])
        return Checkpoint(self.target, manifest)

    def discard(self) -> None:
        """Remove the draft, ignoring errors; the next start of the run sweeps leftovers."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _with_retry(self, once: Callable[[], T], made: Sequence[Path]) -> T:
        """Call `once`, and retry once after an OSError outside FULL.

        Unlink the files in `made` before the retry: a descriptor whose fsync failed must not be synced again.
        """
        try:
            return once()
        except OSError as error:
            if error.errno in FULL:
                raise
            log.warning("step %d: %s; retrying the write", step_of(self.target), error)
        for path in made:
            path.unlink(missing_ok=True)
        return once()


class Checkpoints:
    """The checkpoint folder of a run: save, verify, rotate and find checkpoints."""

    def __init__(self, folder: Path, keeping: CheckpointOptions, acknowledged: Path | None = None) -> None:
        """Open the checkpoint folder of a run, creating the folder if missing.

        acknowledged: file in which a pod's uploader lists the checkpoints confirmed in the store.
        """
        self.folder, self.keeping, self.acknowledged = folder, keeping, acknowledged
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer lock of the folder and sweep leftovers of killed runs.

        Raises CheckpointError when another trainer holds the lock.
        """
        busy = CheckpointError(f"{self.folder}: another trainer writes to this folder. Stop the other trainer first")
        with local_files.holding_lock(self.folder / "LOCK", busy):
            for leftover in (*self.folder.glob(".tmp-*"), *self.folder.glob(".trash-*")):
                shutil.rmtree(leftover)
            yield

    def steps(self) -> list[Path]:
        """Return the `step-*` folders, oldest first, without verifying them."""
        return sorted(path for path in self.folder.iterdir() if STEP.fullmatch(path.name))

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> Checkpoint:
        """Write the checkpoint after `step` completed steps, then remove the oldest checkpoints beyond the limit.

        tensors: by kind, then by name. Return an existing whole checkpoint of the same step unchanged. Raises
        NonFinite, and OSError (DiskFull or ENOSPC for a full disk) after removing the draft.
        """
        require_finite(step, tensors["model"])
        draft = self.open_draft(step, sum(t.nbytes for kind in tensors.values() for t in kind.values()))
        if isinstance(draft, Checkpoint):
            return draft
        try:
            return self.finish(draft, draft.write(0, tensors), 1, facts)
        except BaseException:
            draft.discard()  # report the first error, not a cleanup error
            raise

    def last_config(self) -> dict[str, Any]:
        """Return the phase configuration in the newest readable manifest, unverified, or {} without a checkpoint."""
        for folder in reversed(self.steps()):
            try:
                return dict(_read_manifest(folder).get("config") or {})
            except (OSError, ValueError):
                continue  # the resuming run reports the damage
        return {}

    def has(self, step: int) -> bool:
        """Return whether a checkpoint folder of `step` exists, verified or not."""
        return self._target(step).exists()

    def _target(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def open_draft(self, step: int, num_bytes: int) -> Draft | Checkpoint:
        """Return a new draft for `step`, or the existing checkpoint of `step` when whole.

        Rename a damaged checkpoint of the same step to `.bad-*`. num_bytes: size of the save, checked against the free
        space. Raises OSError, DiskFull.
        """
        target = self._target(step)
        if target.exists():
            if not find_damage(target):
                return Checkpoint(target, _read_manifest(target))
            self._rename_damaged(target)
        self._require_space(num_bytes)
        for is_last in (False, True):
            draft = Draft(self.folder / f".tmp-{step:09d}-{uuid.uuid4().hex[:8]}", target)
            try:
                draft.folder.mkdir()
                break
            except OSError as error:
                if is_last or error.errno in FULL:
                    raise
                log.warning("step %d: %s; retrying the write", step, error)
        return draft

    def finish(self, draft: Draft, files: Sequence[WrittenFile], world: int, facts: Mapping[str, Any]) -> Checkpoint:
        """Rename a completely written draft into place, update LATEST and remove old checkpoints. Raises OSError."""
        made = draft.finish(files, world, facts)
        _sync_folder(self.folder)
        self._write_latest(made.folder)
        self._remove_old()
        return made

    def _remove_old(self) -> None:
        """Remove old checkpoints, keeping the newest `keep` (at least 2) and the newest two confirmed in the store."""
        steps = self.steps()
        kept = {*steps[-max(2, self.keeping.keep) :], *[one for one in steps if one.name in self._stored_names()][-2:]}
        for old in steps:
            if old not in kept:
                remove(old)

    def _stored_names(self) -> set[str]:
        """Return the names of this run's checkpoints confirmed in the store by the uploader."""
        try:
            known = untrusted_input.load(self.acknowledged) if self.acknowledged else {}
        except (OSError, ValueError):  # untrusted input; safe to ignore, the list only protects more checkpoints
            return set()
        return {Path(name).name for name in known if Path(name).parent.name == self.folder.name}

    def find_newest(self) -> Checkpoint | None:
        """Return the newest checkpoint passing verification, or None when the run never saved.

        Rename damaged checkpoints on the way to `.bad-*`. Raises CheckpointError when checkpoints exist and none is
        whole, naming them: a damaged run must not silently restart from step 0.
        """
        problems = []
        for folder in reversed(self.steps()):
            problem = find_damage(folder)
            if not problem:
                return Checkpoint(folder, _read_manifest(folder))
            log.warning("checkpoint of step %d unreadable (%s), trying the one before it", step_of(folder), problem)
            problems.append(f"{self._rename_damaged(folder).name} ({problem})")
        if not problems:  # an earlier start renamed the damaged checkpoints
            problems = sorted((path.name for path in self.folder.glob(".bad-*")), reverse=True)
        if problems:
            raise CheckpointError(
                f"all checkpoints in {self.folder} are damaged: {', '.join(problems)}. "
                f"Restore a good copy as step-<9 digits>, or remove the folder to start from step 0"
            )
        return None

    def _rename_damaged(self, folder: Path) -> Path:
        return folder.rename(folder.with_name(f".bad-{folder.name}-{uuid.uuid4().hex[:8]}"))

    def require_space_for_run(self, size: int) -> None:
        """Raise DiskFull unless the disk holds the checkpoints that a run keeps at the same time.

        These are two, because the old checkpoint is removed after the new one is whole. size: bytes of a checkpoint.
        """
        reserve, free = self.keeping.reserve_bytes, shutil.disk_usage(self.folder).free
        needed = int(1.2 * size) * max(0, 2 - len(self.steps())) + reserve
        if reserve and free < needed:
            gb = "{:,.2f} GB".format
            raise DiskFull(
                f"the disk of {self.folder} has {gb(free / 1e9)} free; two checkpoints of {gb(size / 1e9)} and the "
                f"reserve of {gb(reserve / 1e9)} need {gb(needed / 1e9)}. Free disk space, or use a machine with a "
                "larger disk: --disk-size GB"
            )

    def _require_space(self, size: int) -> None:
        """Raise DiskFull unless 1.2 times `size` plus `reserve_bytes` are free.

        A reserve of 0 disables the check, so that tests can fill the disk during a write.
        """
        reserve = self.keeping.reserve_bytes
        free = shutil.disk_usage(self.folder).free
        if reserve and free < 1.2 * size + reserve:
            raise DiskFull(f"{free} bytes free; a checkpoint of {size} bytes must leave {reserve} bytes free")

    def _write_latest(self, target: Path) -> None:
        """Write the name of a checkpoint to LATEST, as a hint for users.

        Log an OSError and continue: the manifest decides, so a full disk here does not fail the save.
        """
        draft = self.folder / ".LATEST.draft"
        try:
            draft.write_text(target.name + "\n", encoding="utf-8")
            draft.replace(self.folder / "LATEST")
        except OSError as error:
            log.warning("%s: LATEST not updated: %s", self.folder, error)


def find_damage(folder: Path) -> str:
    """Return a description of the damage in a checkpoint, or "" when every file matches the manifest."""
    try:
        check_files(folder)
        if (schema := _read_manifest(folder).get("schema")) != SCHEMA:
            return f"schema {untrusted_input.printable_line(schema)}, this trainer reads {SCHEMA}"
    except FileNotFoundError:
        return "no manifest"
    except (DamagedCheckpoint, OSError) as error:
        return str(error)
    return ""


def open_final(folder: Path) -> Checkpoint:
    """Return the single checkpoint of a published artifact. Raises CheckpointError without exactly one."""
    found = [path for path in folder.iterdir() if STEP.fullmatch(path.name)]
    if len(found) != 1:
        raise CheckpointError(f"{folder}: expected one step-<9 digits> folder, found {len(found)}")
    if problem := find_damage(found[0]):
        raise CheckpointError(f"{found[0]}: {problem}")
    return Checkpoint(found[0], _read_manifest(found[0]))


def master_weights(folder: Path) -> Mapping[str, Tensor] | None:
    """Return the float32 parameters of a published phase, or None for a folder without a checkpoint.

    Raises CheckpointError.
    """
    has_some = folder.is_dir() and any(STEP.fullmatch(path.name) for path in folder.iterdir())
    return open_final(folder).tensors("model") if has_some else None


def file_of(kind: str, rank: int) -> str:
    return f"{kind}-rank{rank:05d}.safetensors"


def require_finite(step: int, parameters: Mapping[str, Tensor]) -> None:
    """Raise NonFinite for a parameter with NaN or infinite values.

    Check the minimum and maximum of each tensor: a single pass over memory and a single GPU synchronization, without
    copies.
    """
    ends = {name: torch.stack(torch.aminmax(tensor)) for name, tensor in parameters.items() if tensor.numel()}
    finite = torch.stack(list(ends.values())).isfinite().all(dim=1).tolist() if ends else []
    for name, is_finite in zip(ends, finite, strict=True):
        if not is_finite:
            raise NonFinite(f"step {step}: {name} is not finite; the trainer does not write this checkpoint")


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def remove(folder: Path) -> None:
    """Remove a folder, renaming to `.trash-*` first so that a kill never leaves a partial checkpoint visible."""
    trash = folder.rename(folder.with_name(f".trash-{uuid.uuid4().hex}"))
    shutil.rmtree(trash)


def _read_manifest(folder: Path) -> dict[str, Any]:
    return untrusted_input.load(folder / MANIFEST)


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
