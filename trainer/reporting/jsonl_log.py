"""Log of JSON lines with one or more records per training step, truncated to the checkpoint on resume.

Records have a `step`; the file contains only complete lines, each flushed at once. A killed run may have logged steps
after the last checkpoint. The resumed run repeats these steps, so their lines are dropped on opening. Files from a pod
or a store are untrusted input: malformed records are skipped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import untrusted_input

FIGURES: dict[str, type] = {"step": int, "tokens": int, "loss": float}
FOLLOWED = "SLIPWAY_FOLLOWED"  # environment variable, set if a terminal shows every step
SAID: dict[str, type] = {"step": int, "prompt": str, "text": str}
OBJECTS = ("config", "conversations")  # keys in a first line with objects as values
LINE_BYTES = untrusted_input.MIB
MOST = 1e30  # larger numbers are rejected, which also keeps sums finite


class StepLines:
    """Append-only log `path`, truncated to step `start`; `kept` holds the remaining records."""

    def __init__(self, path: Path, start: int, kinds: Mapping[str, type] = FIGURES) -> None:
        self.kept = [one for one in read(path, kinds) if one["step"] <= start]
        # Does not use `store.local_files`, which waits for the disk: a resumed training rewrites the records after the
        # last checkpoint anyway, and a failing disk must not end a training that could continue.
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
    """Return the records of a file; [] without a file."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), kinds) if path.exists() else []


def parse(text: str, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
    """Return the valid records of complete lines; an incomplete last line is skipped."""
    lines = (line for line in text.split("\n")[:-1] if line)
    return [found for line in lines if (found := _record(line, kinds)) is not None]


def _record(line: str, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    try:
        found = untrusted_input.mapping(line, LINE_BYTES)
        for key, kind in kinds.items():
            untrusted_input.typed(found, key, kind)
    except untrusted_input.UnusableDocument:
        return None
    rest = {key: one for key, one in found.items() if key not in (*kinds, "mfu_of", *OBJECTS)}
    is_known = all(one is None or type(one) in (int, float) and abs(one) < MOST for one in rest.values())
    is_known &= abs(found.get("loss", 0.0)) < MOST and type(found.get("mfu_of", "")) is str
    is_known &= all(type(found.get(key, {})) is dict for key in OBJECTS)
    return found if is_known and found["step"] >= 0 else None
