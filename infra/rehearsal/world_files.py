"""The files in the folder of a world, and the check for an ended world."""

import json
import shutil
from pathlib import Path

from infra.agent import process
from infra.agent.process import Identity, is_alive
from infra.errors import SlipwayError

ABOUT, ENDED = "world.json", "ended.json"  # of a running world; of an ended world


def has_ended(folder: str) -> bool:
    """Return whether `folder` belongs to an ended world."""
    try:
        return bool(folder) and not is_alive(Identity(**json.loads((Path(folder) / ABOUT).read_text())["process"]))
    except (OSError, ValueError):
        return bool(folder) and (Path(folder) / ENDED).exists()


def end_leftovers(folder: Path) -> None:
    """End the processes of a killed world below `folder`, and remove the folder.

    Raises SlipwayError for processes that cannot be ended.
    """
    for path in folder.glob("*/token"):
        token = path.read_text()  # empty if the world was killed before the first process started
        left = process.end_all(token, 0) if token else []
        if left:
            raise SlipwayError(process.describe_survivors(left))
    shutil.rmtree(folder, ignore_errors=True)
