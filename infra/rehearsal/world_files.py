"""The files in the folder of a world, and whether they say that the world runs no more."""

import json
from pathlib import Path

from infra.agent.process import Identity, is_alive

ABOUT, ENDED = "world.json", "ended.json"  # of a world that answers, of one that has ended


def has_ended(folder: str) -> bool:
    """Tell whether that is the folder of a world that runs no more."""
    try:
        return bool(folder) and not is_alive(Identity(**json.loads((Path(folder) / ABOUT).read_text())["process"]))
    except (OSError, ValueError):
        return bool(folder) and (Path(folder) / ENDED).exists()
