"""The room on this machine's disk for what runs bring home: a reserve stays free.

In: the folder that takes what comes, the bytes that stay free. Out: nothing, or in words that no more is fetched.
"""

import shutil
from pathlib import Path

from infra.errors import SlipwayError
from infra.units import size


def lacks(folder: Path, reserve_bytes: int) -> str:
    """Return that the disk of a folder has less than the reserve left; "" while there is room."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if free >= reserve_bytes:
        return ""
    return (f"{size(free)} are free on the disk of {there}, and {size(reserve_bytes)} are kept free "
            "(SLIPWAY_RESERVE_BYTES): logs and results of runs are not fetched; they stay on the pods while those "
            "live; make room")  # fmt: skip


def refuse_without_room(folder: Path, reserve_bytes: int) -> None:
    """Raise SlipwayError when the reserve of the disk is reached."""
    if why := lacks(folder, reserve_bytes):
        raise SlipwayError(why)
