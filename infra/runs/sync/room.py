"""Disk space for downloads of runs: a reserve stays free on the local disk."""

import shutil
from pathlib import Path

from infra.errors import SlipwayError
from infra.units import size

RESERVE_BYTES, RESERVE_SHARE = 1 << 30, 0.05  # The smaller of both stays free, regardless of the download size.


def lacks(folder: Path, reserve_bytes: int) -> str:
    """Return an error text if the disk of a folder has less than the reserve left, or ""."""
    there = _that_exists(folder)
    free = shutil.disk_usage(there).free
    if free >= reserve_bytes:
        return ""
    return (
        f"{size(free)} are free on the disk of {there}, and {size(reserve_bytes)} must stay free "
        "(SLIPWAY_RESERVE_BYTES): logs and results of runs stay on the pods until the pods end, "
        "and are not downloaded; free some disk space"
    )


def refuse_without_room(folder: Path, reserve_bytes: int) -> None:
    """Raise SlipwayError if the disk of a folder has less than the reserve left."""
    if why := lacks(folder, reserve_bytes):
        raise SlipwayError(why)


def free_bytes(folder: Path) -> int:
    """Return the bytes available to downloads on the disk of a folder."""
    disk = shutil.disk_usage(_that_exists(folder))
    return max(0, disk.free - min(RESERVE_BYTES, int(RESERVE_SHARE * disk.total)))


def refuse_large(what: str, num_bytes: int, folder: Path) -> None:
    """Raise SlipwayError if `num_bytes` do not fit on the disk of a folder."""
    if num_bytes > (free := free_bytes(folder)):
        raise SlipwayError(
            f"{what} has {size(num_bytes)}, but {folder} has room for {size(free)}; "
            "nothing was downloaded. Free some space on this disk"
        )


def _that_exists(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
