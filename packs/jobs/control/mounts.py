"""The maker of each mount of a job file: Slipway sends files, the uploader brings folders, an engine makes the rest."""

import re
from collections.abc import Collection

from packs.jobs.control.job_file import JobTask, Mount
from packs.jobs.control.schema import NO_EFFECT_MOUNTS, Storage

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


def without_effect(task: JobTask, ours: Collection[str]) -> list[str]:
    """Return one note per mount with keys that have no effect. `ours`: the paths of the mounts that Slipway makes."""
    found = []
    for path, one in (task.said.file_mounts or {}).items():
        is_copy = isinstance(one, Storage) and one.mode.upper() == "COPY" and one.source is not None
        keys = (*(("name",) if is_copy else ()), *NO_EFFECT_MOUNTS)
        if path in ours and (idle := [key for key in keys if getattr(one, key, None) is not None]):
            found.append(f"file_mounts: {path}: {', '.join(idle)}: no effect, because Slipway itself moves the files")
    return found
