"""A file of JSON lines, one or more for each step of a run, that goes on where a checkpoint stands.

In: records with a `step`. Out: the file, whole lines only, on the disk's way at once. A run that was killed has told
of steps that its checkpoint does not know: they are done again, so their lines are dropped. Called by `Metrics`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class StepLines:
    """`path`, kept up to step `start`; `kept` are its records."""

    def __init__(self, path: Path, start: int) -> None:
        self.kept = [one for one in read(path) if one["step"] <= start]
        draft = path.with_suffix(".draft")
        draft.write_text("".join(f"{json.dumps(one)}\n" for one in self.kept), encoding="utf-8")
        draft.replace(path)
        self.file = path.open("a", encoding="utf-8")

    def add(self, record: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """[] where there is no file."""
    return parse(path.read_text(encoding="utf-8")) if path.exists() else []


def parse(text: str) -> list[dict[str, Any]]:
    """The whole lines; what a kill cut off at the end, or is just being written, is left out."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
