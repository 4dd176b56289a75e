"""Checkpoints for a user's own training loop, which resumes from the newest checkpoint after a restart.

    from slipway import checkpoint

    saver = checkpoint.Saver("resnet", keep=5)
    found = saver.load_latest()                      # None at the first start
    state, step = found if found else (fresh(), 0)
    ...
    saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)

A checkpoint is a folder `step-000000500/`. `MANIFEST.json` lists the size and sha256 of each file and is written last,
so a partial checkpoint is never visible. Loading skips a damaged checkpoint and tries the previous checkpoint.

On a pod, checkpoints are stored in `$SLIPWAY_WORK/checkpoints`; Slipway uploads them to the store and downloads them on
a new machine. Elsewhere the folder is `checkpoints/`. In a distributed job, rank 0 saves and all ranks load. The module
needs only Python, and PyTorch if the job has imported it.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

RESUME_ME = 75  # exit code of a job that saved after a stop request and must be restarted
STEP = re.compile(r"step-([0-9]{9,18})")
MANIFEST = "MANIFEST.json"
LEAST = 2  # minimum number of kept checkpoints: the newest may be damaged
TRIES = 2  # attempts to save when the disk fails
CHUNK = 1 << 20
log = logging.getLogger("slipway.checkpoint")

T = TypeVar("T")


class CheckpointError(Exception):
    """No existing checkpoint can be loaded; raised so that a run does not silently restart from scratch."""


class Saver:
    """Save and load the checkpoints of a run."""

    def __init__(self, prefix: str = "checkpoint", save_dir: Union[str, Path] = "", keep: int = 5) -> None:
        """Keep the newest `keep` checkpoints, at least two, in the folder `prefix` of `save_dir`."""
        if not re.fullmatch(r"(?!\.)[A-Za-z0-9._-]{1,128}", prefix):
            raise ValueError(f"{prefix!r} is not a valid folder name: letters, digits, . _ -")
        work = os.environ.get("SLIPWAY_WORK", "")
        self.folder = Path(save_dir or (Path(work, "checkpoints") if work else "checkpoints")) / prefix
        self.prefix, self.keep = prefix, max(LEAST, keep)

    def steps(self) -> List[int]:
        """Return the steps with a checkpoint manifest, oldest first; the files are not verified."""
        return sorted(
            int(path.parent.name[5:])
            for path in self.folder.glob(f"step-*/{MANIFEST}")
            if STEP.fullmatch(path.parent.name)
        )

    def save(self, state: Any, step: int, metrics: Optional[Mapping[str, float]] = None, model_type: str = "") -> bool:
        """Save `state` as the checkpoint of `step`: with PyTorch if imported, otherwise as JSON.

        Return False after two disk failures; both are logged and training continues. Raises ValueError for a state with
        unsupported types, because a retry would fail too.
        """
        for tries in range(1, TRIES + 1):
            try:
                with self.draft(step, metrics, model_type) as folder:
                    if folder is not None:
                        _write(folder, state)
                return True
            except OSError as error:
                log.error(
                    "checkpoint of step %d was not saved (%s)%s", step, error, "; once more" if tries < TRIES else ""
                )
        return False

    @contextlib.contextmanager
    def draft(
        self, step: int, metrics: Optional[Mapping[str, float]] = None, model_type: str = ""
    ) -> Iterator[Optional[Path]]:
        """Yield a folder for the files of the checkpoint of `step`, published when the block ends without an error.

        Yield None on every rank but 0. Replaces an existing checkpoint of the same step.
        """
        if not _is_first_rank():
            yield None
            return
        draft = self.folder / f".tmp-{step:09d}-{uuid.uuid4().hex[:8]}"
        draft.mkdir(parents=True)
        try:
            yield draft
            self._publish(draft, step, metrics or {}, model_type)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._remove_oldest()

    def load_latest(self) -> Optional[Tuple[Any, int]]:
        """Return the state and step of the newest valid checkpoint, or None without any checkpoint.

        Raises CheckpointError if checkpoints exist and all are damaged.
        """
        return self.load(lambda folder, step: (_read(folder), step))

    def load(self, read: Callable[[Path, int], T]) -> Optional[T]:
        """Return the result of `read(folder, step)` for the newest valid checkpoint, or None without any checkpoint.

        Skips a checkpoint if `read` raises. Raises CheckpointError if checkpoints exist and none can be loaded.
        """

        def whole(step: int) -> T:
            folder = self.folder / f"step-{step:09d}"
            verify(folder)
            return read(folder, step)

        return _newest(self.folder, self.steps(), whole)

    def _publish(self, draft: Path, step: int, metrics: Mapping[str, float], model_type: str) -> None:
        paths = sorted(path for path in draft.rglob("*") if path.is_file())
        if not paths:
            raise ValueError(f"nothing was written into the checkpoint of step {step}")
        files = [
            {"path": path.relative_to(draft).as_posix(), "size": path.stat().st_size, "sha256": _sha256(path)}
            for path in paths
        ]
        about: Dict[str, Any] = {
            "phase": self.prefix,
            "step": step,
            "files": files,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "metrics": {name: float(value) for name, value in metrics.items()},
        }
        if model_type:
            about["model_type"] = model_type
        for path in paths:
            _sync(path)
        manifest = draft / MANIFEST
        manifest.write_text(json.dumps(about, indent=1), encoding="utf-8")
        _sync(manifest)
        target = self.folder / f"step-{step:09d}"
        if target.exists():
            target.rename(self.folder / f".old-{target.name}-{uuid.uuid4().hex[:8]}")
        draft.rename(target)
        _sync(self.folder)

    def _remove_oldest(self) -> None:
        for step in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{step:09d}", ignore_errors=True)
        for old in self.folder.glob(".old-*"):
            shutil.rmtree(old, ignore_errors=True)


def verify(folder: Path) -> Dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises ValueError or OSError if a file is missing or differs from the manifest.
    """
    about = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for file in about["files"]:
        path = folder / file["path"]
        if path.stat().st_size != file["size"] or _sha256(path) != file["sha256"]:
            raise ValueError(f"{file['path']} does not match the manifest")
    return dict(about)


def save_checkpoint(
    save_dir: Union[str, Path] = "", max_checkpoints: int = 5, checkpoint_prefix: str = "checkpoint"
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Save a checkpoint at each call: put `@save_checkpoint(save_dir="checkpoints")` above a function `save(step)`.

    The step is the argument `step`, otherwise the first positional argument; without a step the decorator only calls
    the function. The decorator saves the function's return value as the state of the step, and returns the value. If
    the function returns None, the decorator registers the files written by the function into `save_dir` (created
    beforehand) as the checkpoint, and removes the oldest checkpoints. If the function raises, the decorator retries the
    call once.
    """
    saver = Saver(checkpoint_prefix, save_dir, max_checkpoints)
    files = OwnFiles(saver.folder.parent, checkpoint_prefix, max_checkpoints)
    if save_dir:
        files.folder.mkdir(parents=True, exist_ok=True)

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            step = kwargs.get("step", args[0] if args else None)
            if step is None:
                return function(*args, **kwargs)
            files.folder.mkdir(parents=True, exist_ok=True)
            before = files.stamps()
            try:
                state = function(*args, **kwargs)
            except Exception as error:  # for example a temporary disk failure
                log.error("Failed to save checkpoint at step %s: %s; trying once more", step, error)
                state = function(*args, **kwargs)
            model = kwargs.get("model", args[1] if len(args) > 1 else None)
            model_type = "" if model is None else type(model).__name__
            if state is None:
                files.register(int(step), before, model_type)
            else:
                saver.save(state, int(step), model_type=model_type)
            return state

        return wrapper

    return decorate


def load_checkpoint(
    save_dir: Union[str, Path] = "", checkpoint_prefix: str = "checkpoint"
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Pass the newest loadable checkpoint to a function.

    A function with an argument `state` receives the saved state and the step. Any other function receives only the
    step, and reads the files written under `save_checkpoint`. If the function raises, the decorator retries with the
    previous checkpoint. Without any checkpoint, the decorator calls the function with its original arguments.
    """
    saver = Saver(checkpoint_prefix, save_dir)
    files = OwnFiles(saver.folder.parent, checkpoint_prefix)

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        takes_state = any(
            one.name == "state" or one.kind is one.VAR_KEYWORD
            for one in inspect.signature(function).parameters.values()
        )

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            def call(step: int, more: Mapping[str, Any]) -> Tuple[T]:
                if "step" in kwargs or not args:
                    return (function(*args, **{**kwargs, "step": step, **more}),)
                return (function(step, *args[1:], **{**kwargs, **more}),)

            if takes_state:
                found = saver.load(lambda folder, step: call(step, {"state": _read(folder)}))
            else:
                found = files.load(lambda step: call(step, {}))
            return function(*args, **kwargs) if found is None else found[0]

        return wrapper

    return decorate


class OwnFiles:
    """Checkpoints made of files that a user's function writes.

    `PREFIX_step_STEP_metadata.json` lists the files of a step. A file named `PREFIX_step_STEP.pt` is a checkpoint even
    without metadata.
    """

    def __init__(self, folder: Path, prefix: str, keep: int = 5) -> None:
        self.folder, self.prefix, self.keep = folder, prefix, max(1, keep)
        self.known = re.compile(rf"{re.escape(prefix)}_step_([0-9]+)(\.pt|_metadata\.json)")

    def stamps(self) -> Dict[str, Tuple[int, int, int]]:
        """Return size, modification time and inode of each file written by functions, by relative path."""
        ours = self.folder / self.prefix  # written by the Saver
        found = {}
        for path in self.folder.rglob("*"):
            if path.name.endswith("_metadata.json") or ours in path.parents or not path.is_file():
                continue
            seen = path.stat()
            found[path.relative_to(self.folder).as_posix()] = (seen.st_size, seen.st_mtime_ns, seen.st_ino)
        return found

    def register(self, step: int, before: Mapping[str, Tuple[int, int, int]], model_type: str) -> None:
        """Register the files written since `before` as the checkpoint of `step`, and remove the oldest checkpoints.

        Without new files, log a warning and register no checkpoint.
        """
        if not _is_first_rank():
            return
        now = self.stamps()
        written = {name: seen[0] for name, seen in now.items() if before.get(name) != seen and seen[0]}
        if not written:
            log.warning(
                "step %d has no checkpoint: the function returned no value, and wrote no file in %s", step, self.folder
            )
            return
        for name in written:
            _sync(self.folder / name)
        about = {
            "step": step,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "model_type": model_type,
            "files": {**self._files(step), **written},
        }
        target = self.folder / f"{self.prefix}_step_{step}_metadata.json"
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        draft.write_text(json.dumps(about), encoding="utf-8")
        _sync(draft)
        draft.rename(target)
        _sync(self.folder)
        self._remove_oldest()
        log.info("Saved checkpoint at step %d", step)

    def load(self, read: Callable[[int], T]) -> Optional[T]:
        """Return the result of `read(step)` for the newest loadable step, or None without any checkpoint.

        Raises CheckpointError if checkpoints exist and none can be read.
        """
        return _newest(self.folder, self.steps(), read)

    def steps(self) -> List[int]:
        """Return the steps with an existing file, oldest first."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        noted = {int(found[1]) for found in map(self.known.fullmatch, names) if found}
        return sorted(step for step in noted if any((self.folder / name).is_file() for name in self._files(step)))

    def _files(self, step: int) -> Dict[str, int]:
        """Return the files of a step with their sizes, from the metadata and from file names."""
        path = self.folder / f"{self.prefix}_step_{step}.pt"
        found = {path.name: path.stat().st_size} if path.is_file() else {}
        try:
            about = json.loads(path.with_name(f"{self.prefix}_step_{step}_metadata.json").read_text(encoding="utf-8"))
            return {**found, **about["files"]}
        except (OSError, ValueError, KeyError, TypeError):  # written by a different program
            return found

    def _remove_oldest(self) -> None:
        steps = self.steps()
        kept = {name for step in steps[-self.keep :] for name in self._files(step)}
        for step in steps[: -self.keep]:
            for name in self._files(step):
                if name not in kept:
                    with contextlib.suppress(OSError):
                        (self.folder / name).unlink()
            with contextlib.suppress(OSError):
                (self.folder / f"{self.prefix}_step_{step}_metadata.json").unlink()


def _is_first_rank() -> bool:
    return os.environ.get("RANK", os.environ.get("SKYPILOT_NODE_RANK", "0")) == "0"


def _write(folder: Path, state: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.save(state, folder / "state.pt")
        try:
            # Memory-map the file to avoid reading tensors; the loader only rejects plain values.
            torch.load(folder / "state.pt", map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise ValueError(
                f"the saved state could not be loaded ({str(error).splitlines()[0]}); save tensors and plain values, "
                "or write files with draft()"
            ) from None
        return
    try:
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the state cannot be saved as JSON ({error}); import torch, or write files with draft()"
        ) from None


def _read(folder: Path) -> Any:
    if (folder / "state.json").exists():
        return json.loads((folder / "state.json").read_text(encoding="utf-8"))
    import torch

    return torch.load(folder / "state.pt", map_location="cpu", weights_only=True)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(CHUNK), b""):
            found.update(piece)
    return found.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _newest(folder: Path, steps: List[int], read: Callable[[int], T]) -> Optional[T]:
    """Return the result of `read` for the newest readable step, or None if `steps` is empty.

    Raises CheckpointError if no step can be read.
    """
    for step in reversed(steps):
        try:
            found = read(step)
        except Exception as error:  # a damaged file can cause any error
            log.warning("Failed to load checkpoint at step %d, trying previous checkpoint: %s", step, error)
            continue
        log.info("Successfully loaded checkpoint from step %d", step)
        return found
    if steps:
        log.error("Failed to load any checkpoint")
        raise CheckpointError(
            f"no checkpoint in {folder} can be loaded (steps {steps}); to start again, remove the checkpoints"
        )
    log.warning("No checkpoints found in %s", folder)
    return None
