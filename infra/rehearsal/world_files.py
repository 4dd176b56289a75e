"""The files in the folder of a world, and the check for an ended world."""

import json
from pathlib import Path

from infra.agent.process import Identity, is_alive

ABOUT, ENDED = "world.json", "ended.json"  # of a running world; of an ended world


def has_ended(folder: str) -> bool:
    """Return whether `folder` belongs to an ended world."""
    try:
        return bool(folder) and not is_alive(Identity(**json.loads((Path(folder) / ABOUT).read_text())["process"]))
    except (OSError, ValueError):
        return bool(folder) and (Path(folder) / ENDED).exists()
