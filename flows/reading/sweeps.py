"""Sweeps on record: which runs belong together, and what became of each. A sweep writes, whoever shows it reads.

One file for each sweep, beside the pods. It decides nothing: what a run is at says the journal.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from infra.settings import Settings
from store import outside

MOST_KEPT = 50


@dataclass(frozen=True)
class Arm:
    """One run of a sweep. `settings`: the flags in which it differs from the others."""

    run: str
    pod: str
    state: str
    loss: float | None = None
    seconds: float | None = None
    reason: str = ""
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptSweep:
    began_at: float
    is_over: bool
    arms: tuple[Arm, ...]


def folder_of(settings: Settings) -> Path:
    """Return the folder of the records."""
    return settings.pods.parent / "sweeps"


def keep(path: Path, sweep: KeptSweep) -> None:
    """Write the record anew, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".draft-{os.getpid()}")
    draft.write_text(json.dumps(asdict(sweep)), encoding="utf-8")
    draft.replace(path)


def new_path(settings: Settings) -> Path:
    """Return where the record of a sweep goes that begins now; the oldest ones are removed."""
    folder = folder_of(settings)
    for old in sorted(folder.glob("*.json"))[: -MOST_KEPT + 1]:
        old.unlink(missing_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.json"


def kept(settings: Settings) -> list[KeptSweep]:
    """Return the sweeps on record, the newest first; a record that cannot be read is left out."""
    found = []
    for path in sorted(folder_of(settings).glob("*.json"))[::-1]:
        try:
            said = outside.mapping(outside.content(path), nan_is_null=True)
            arms = tuple(Arm(**one) for one in outside.typed(said, "arms", list))
            found.append(KeptSweep(float(said["began_at"]), bool(said["is_over"]), arms))
        except (outside.Unreadable, OSError, KeyError, TypeError, ValueError):
            continue
    return found


def differing(specs: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return, for each run, the flags whose values are not the same in all."""
    names = dict.fromkeys(name for one in specs.values() for name in one)
    odd = [name for name in names if len({repr(one.get(name)) for one in specs.values()}) > 1]
    return {run: {name: _text(one[name]) for name in odd if name in one} for run, one in specs.items()}


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
