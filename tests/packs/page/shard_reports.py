"""A report on shards for the tests of the page."""

import copy
from typing import Any

SHARD = {"name": "shard-00000.txt", "lines": 3, "bytes": 30, "raw_bytes": 27, "sha256": "0" * 64}
REPORT: dict[str, Any] = {
    "source": "notes.txt",
    "tool": "slipway 0.1.0",
    "shards": 1,
    "shards_read": 1,
    "documents": 3,
    "raw_bytes": 27,
    "stored_bytes": 30,
    "read": {"documents": 3, "characters": 27, "bytes": 27},
    "duplicates": {"share": 0.0, "one_of": 1},
    "lengths": [[1, 9, 3]],
    "quantiles": [[0.5, 9]],
    "scores": {"score": {"most": 5.0, "counts": [0, 3], "known": 3}},
    "lines": [["a line", 2]],
    "lines_lost": 0,
    "repeated": [],
    "languages": [["en", 3]],
    "sites": [],
    "samples": [{"text": "a line", "characters": 6}],
    "parts": [{"name": "", "finished": True, "total_lines": 3, "total_bytes": 30, "counts": {"read": 3}, "options": {},
               "num_shards": 1, "shards": [SHARD]}],
}  # fmt: skip


def changed(value: Any, *path: str | int) -> dict[str, Any]:
    """Return REPORT with a value at this path."""
    found = inner = copy.deepcopy(REPORT)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return found
