"""The maker of each mount of a job file: Slipway sends files, the uploader brings folders, an engine makes the rest."""

import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from packs.jobs.control.images import first_image
from packs.jobs.control.job_file import JobTask, Mount
from packs.jobs.control.schema import NO_EFFECT_MOUNTS, Storage
from store import credentials
from store.backends.backend import open_place
from store.manifest import NoStore, StoreError
from store.run_sync.mounts import fuse_problem

BUCKET = r"(s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]+(/.*)?|hf://[^/\s]+/[^\s]+"


def is_of_engine(one: Mount) -> bool:
    """Return whether an engine makes a mount: a bucket that Slipway does not read, a folder or a name as a bucket."""
    if "://" in one.source:
        return not re.fullmatch(BUCKET, one.source)
    return bool(one.sources) or one.mode != ("COPY" if one.source else "MOUNT_CACHED")


def is_kept(one: Mount) -> bool:
    """Return whether the uploader brings the files of a mount, from a bucket or from the store."""
    if one.sources:
        return False
    return one.mode == "MOUNT_CACHED" or "://" in one.source or (one.mode == "MOUNT" and not one.source)


def is_file(one: Mount) -> bool:
    """Return whether the address of a bucket names a file, as does the path in the job."""
    suffix = Path(one.source.rstrip("/").rpartition("/")[2]).suffix
    return bool(suffix) and suffix == Path(one.path).suffix


def copy_reason(one: Mount, task: JobTask) -> str:
    """Return the reason why the files of a mount are copied to the pod, or "" for a bucket that rclone may mount."""
    if one.mode != "MOUNT":
        return "the job asks for a copy"
    if not one.source.startswith("s3://"):
        return "Slipway mounts buckets of s3:// only"
    if is_file(one):
        return "the address names a file"
    return "a container does not see the mount" if first_image(task) else ""


def in_plan(one: Mount, task: JobTask, is_here: bool, store: str) -> str:
    """Return the line of the plan for a mount of the uploader or of rclone. store: address of the named folders."""
    source, why = one.source or f"{store}/mounts/{one.name}", copy_reason(one, task)
    back = "changes stay on the pod" if one.mode == "COPY" else "changes are written back"
    back += " by node 0 alone" if task.num_nodes > 1 and one.mode != "COPY" else ""
    if not why and not is_here:
        return (
            f"{one.path} is {source}, mounted by rclone if the machine has rclone and FUSE; else a copy on the pod, "
            f"and {back}"
        )
    why = why or fuse_problem()
    if not why:
        return f"{one.path} is {source}, mounted by rclone"
    because = f" (a copy on the pod, as with MOUNT_CACHED, because {why})" if one.mode == "MOUNT" else ""
    return f"{one.path} starts from {source}, and {back}{because}"


def unwritable(tasks: Collection[JobTask], kinds: Collection[str]) -> Iterator[str]:
    """Yield one note per bucket that may not take the changes of a job. `kinds`: the kinds with a key: s3, gs, hf.

    Raise NoStore for a mount of the mode MOUNT_CACHED; a job may only read a mount of the mode MOUNT.
    """
    for one in (mount for task in tasks for mount in task.mounts if is_kept(mount) and mount.mode != "COPY"):
        if credentials.kind(one.source) not in kinds:
            continue
        try:
            _check_writable(one.source)
        except NoStore as error:
            if one.mode == "MOUNT_CACHED":
                said = f"line {one.line}: file_mounts: {one.path}: {one.source} takes no changes of the job"
                raise type(error)(f"{said}: {error}; to only read: mode: COPY") from None
            yield f"{one.path}: the bucket takes no changes of the job: {error}"
        except StoreError as error:  # a bucket that only the machine of the job reaches
            yield f"{one.path}: not checked whether the bucket takes changes of the job: {error}"


@functools.cache
def _check_writable(uri: str) -> None:
    try:
        open_place(uri).check_writable(is_shared=False)
    except FileNotFoundError as error:  # the hub reports a missing branch as a missing file
        raise NoStore(str(error)) from None


def without_effect(task: JobTask, ours: Collection[str]) -> list[str]:
    """Return one note per mount with keys that have no effect. `ours`: the paths of the mounts that Slipway makes."""
    found = []
    for path, one in (task.said.file_mounts or {}).items():
        is_copy = isinstance(one, Storage) and one.mode.upper() == "COPY" and one.source is not None
        keys = (*(("name",) if is_copy else ()), *NO_EFFECT_MOUNTS)
        if path in ours and (idle := [key for key in keys if getattr(one, key, None) is not None]):
            found.append(f"file_mounts: {path}: {', '.join(idle)}: no effect, because Slipway itself moves the files")
    return found
