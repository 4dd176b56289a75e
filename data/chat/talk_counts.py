"""Counts of what the rows of a phase hold of its conversations. Light to import: no numpy here.

Out: `TalkCounts`, which add up, and the words of them that are shown before training and stand in the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class TalkCounts:
    """Counts over conversations, and over the answers in them that are to be learnt."""

    conversations: int = 0
    refused: int = 0
    """Conversations that the model's chat template cannot write as they are meant: they are left out."""
    without_targets: int = 0
    """Conversations of which no token is learnt within a row: they are left out."""
    answers: int = 0
    cut_answers: int = 0
    """Answers that lose their end, or all, at the end of a row."""
    reasons: tuple[str, ...] = ()
    """Some of the rows that were refused, and why."""

    def __add__(self, other: "TalkCounts") -> "TalkCounts":
        return TalkCounts(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "TalkCounts":
        """Return the counts that a line of metrics.jsonl states."""
        counts = {one.name: int(said.get(one.name, 0)) for one in fields(cls) if one.name != "reasons"}
        return cls(**counts, reasons=tuple(map(str, said.get("reasons", ()))))

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is lost."""
        return not self.refused and not self.without_targets and not self.cut_answers

    def lines(self) -> list[tuple[str, str]]:
        """Return what the report says: a name, and figures in words."""
        return [
            ("conversations refused by the chat template, left out", _share(self.refused, self.conversations)),
            ("conversations without anything to learn, left out", _share(self.without_targets, self.conversations)),
            ("answers that lose their end to the row's length", _share(self.cut_answers, self.answers)),
        ]

    def words(self) -> str:
        return "; ".join([*(f"{name}: {figures}" for name, figures in self.lines()), *self.reasons])


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole if whole else 0:.1f} %)"
