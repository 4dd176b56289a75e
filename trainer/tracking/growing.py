"""A file of JSON lines that grows, read piece by piece.

In: a path. Out: the records that were added since the last look. The file may be replaced by one that begins again, as
a training does when it goes on from a checkpoint: then it is read from its beginning, and whoever reads knows by the
steps what is new.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.reporting.jsonl_log import parse

PIECE_BYTES = 4 << 20


class Growing:
    def __init__(self, path: Path, kinds: Mapping[str, type]) -> None:
        self.path, self.kinds = path, kinds
        self.inode, self.offset, self.rest = 0, 0, b""

    def read(self) -> list[dict[str, Any]]:
        """Return the records of whole lines of at most one more piece; [] where there is no file yet."""
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
