"""The day on which a run began, beside its checkpoints: templates write it, and a run that goes on later keeps it."""

from datetime import datetime
from pathlib import Path

from store import local_files
from trainer.parallel.process_group import Ranks

NAME = ".first-day"


def first_day(folder: Path, ranks: Ranks) -> datetime:
    """Return the day on which the run with these checkpoints began, the same on all processes."""
    file = folder / NAME
    if ranks.is_first and not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        local_files.replace(file, datetime.now().date().isoformat().encode())
    day: str = ranks.tell(file.read_text(encoding="ascii").strip() if ranks.is_first else "")
    return datetime.fromisoformat(day)
