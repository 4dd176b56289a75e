"""Incremental reader for a growing file of JSON lines.

Each read returns the records appended since the last read. A training that resumes from a checkpoint replaces the file:
the reader then starts from the beginning, and the caller recognizes new records by step.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.reporting.jsonl_log import parse

PIECE_BYTES = 4 << 20


class JsonlTail:
    def __init__(self, path: Path, kinds: Mapping[str, type]) -> None:
        self.path, self.kinds = path, kinds
        self.inode, self.offset, self.rest = 0, 0, b""

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete records, from at most PIECE_BYTES more of the file; [] without a file."""
        try:
            with self.path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self.inode or now.st_size < self.offset:
                    self.inode, self.offset, self.rest = now.st_ino, 0, b""
                file.seek(self.offset)
                fresh = file.read(PIECE_BYTES)
        except FileNotFoundError:
            return []
        self.offset += len(fresh)
        whole, newline, self.rest = (self.rest + fresh).rpartition(b"\n")
        return parse((whole + newline).decode("utf-8", "replace"), self.kinds) if newline else []
