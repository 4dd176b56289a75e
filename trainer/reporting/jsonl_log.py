"""A file of JSON lines, one or more for each step of a run, that goes on where a checkpoint stands.

In: records with a `step`. Out: the file, whole lines only, on the disk's way at once. A run that was killed has told
of steps that its checkpoint does not know: they are done again, so their lines are dropped. What a pod or a store has
brought may be anybody's: a line that is no such record is left out.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import outside

FIGURES: dict[str, type] = {"step": int, "tokens": int, "loss": float}
FOLLOWED = "SLIPWAY_FOLLOWED"  # set where a terminal shows the figures of a step as they come
SAID: dict[str, type] = {"step": int, "prompt": str, "text": str}
OBJECTS = ("config", "conversations")  # keys of a first line whose values are objects
LINE_BYTES = outside.MIB
MOST = 1e30  # a larger number is no figure, and sums of it would be none


class StepLines:
    """`path`, kept up to step `start`; `kept` are its records."""

    def __init__(self, path: Path, start: int, kinds: Mapping[str, type] = FIGURES) -> None:
        self.kept = [one for one in read(path, kinds) if one["step"] <= start]
        # Not by `store.local_files`, which waits for the disk: figures are written anew from the last checkpoint on,
        # and a disk that fails must not end a training that could still go on.
        draft = path.with_suffix(".draft")
        draft.write_text("".join(f"{json.dumps(one)}\n" for one in self.kept), encoding="utf-8")
        draft.replace(path)
        self.file = path.open("a", encoding="utf-8")

    def add(self, record: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read(path: Path, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
    """Return the records of a file, [] where there is none."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), kinds) if path.exists() else []


def parse(text: str, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
    """Return the records of whole lines; what a kill cut off at the end, or is just being written, is left out."""
    lines = (line for line in text.split("\n")[:-1] if line)
    return [found for line in lines if (found := _record(line, kinds)) is not None]


def _record(line: str, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    try:
        found = outside.mapping(line, LINE_BYTES)
        for key, kind in kinds.items():
            outside.typed(found, key, kind)
    except outside.Unreadable:
        return None
    rest = {key: one for key, one in found.items() if key not in (*kinds, "mfu_of", *OBJECTS)}
    is_known = all(one is None or type(one) in (int, float) and abs(one) < MOST for one in rest.values())
    is_known &= abs(found.get("loss", 0.0)) < MOST and type(found.get("mfu_of", "")) is str
    is_known &= all(type(found.get(key, {})) is dict for key in OBJECTS)
    return found if is_known and found["step"] >= 0 else None
