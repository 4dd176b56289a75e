"""The content of report.json on shards, as `data.report.document` writes it and static/views/data.js draws it."""

from typing import Any, TypedDict

Counts = list[tuple[str, int]]


class Read(TypedDict):
    documents: int
    characters: int
    bytes: int


class Duplicates(TypedDict):
    share: float
    one_of: int


class Score(TypedDict):
    most: float
    counts: list[int]
    known: int


class Sample(TypedDict):
    text: str
    characters: int


class Shard(TypedDict):
    name: str
    lines: int
    bytes: int
    raw_bytes: int
    sha256: str


class Part(TypedDict):
    name: str
    finished: bool | None
    total_lines: int | None
    total_bytes: int | None
    counts: dict[str, Any] | None
    options: dict[str, Any] | None
    num_shards: int
    shards: list[Shard]


class ShardReport(TypedDict):
    source: str
    tool: str
    shards: int
    shards_read: int
    documents: int
    raw_bytes: int
    stored_bytes: int
    read: Read
    duplicates: Duplicates
    lengths: list[tuple[float, float, int]]
    quantiles: list[tuple[float, float]]
    scores: dict[str, Score]
    lines: Counts
    lines_lost: int
    repeated: Counts
    languages: Counts
    sites: Counts
    samples: list[Sample]
    parts: list[Part]
