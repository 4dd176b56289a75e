"""The start date of a run, stored beside the checkpoints so that dated chat templates stay equal after a resume."""

from datetime import datetime
from pathlib import Path

from store import local_files
from trainer.parallel.process_group import Ranks

NAME = ".first-day"


def run_start_date(folder: Path, ranks: Ranks) -> datetime:
    """Return the start date of the run with these checkpoints, equal on all processes; write the date on first use."""
    file = folder / NAME
    if ranks.is_first and not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        local_files.replace(file, datetime.now().date().isoformat().encode())
    day: str = ranks.broadcast(file.read_text(encoding="ascii").strip() if ranks.is_first else "")
    return datetime.fromisoformat(day)
