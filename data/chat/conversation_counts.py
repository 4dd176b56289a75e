"""Counts of conversations lost in the rows of a phase. Light to import: no numpy.

`ConversationCounts` can be added, and are shown before training and in the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ConversationCounts:
    """Counts of conversations and of trained answers."""

    conversations: int = 0
    refused: int = 0
    """Conversations left out because the model's chat template cannot render them faithfully."""
    without_targets: int = 0
    """Conversations left out because no token in the row carries loss."""
    answers: int = 0
    cut_answers: int = 0
    """Answers cut off, partly or wholly, at the end of a row."""
    without_end: int = 0
    """Answers whose stop token is not trained: the chat template marks the words of an answer only."""
    reasons: tuple[str, ...] = ()
    """Examples of rejected rows, with reasons."""

    def __add__(self, other: "ConversationCounts") -> "ConversationCounts":
        return ConversationCounts(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )

    @classmethod
    def from_metrics(cls, said: Mapping[str, Any]) -> "ConversationCounts":
        """Return the counts of a line of metrics.jsonl."""
        counts = {one.name: int(said.get(one.name, 0)) for one in fields(cls) if one.name != "reasons"}
        return cls(**counts, reasons=tuple(map(str, said.get("reasons", ()))))

    @property
    def is_complete(self) -> bool:
        """Return True if no conversation or answer is lost."""
        return not (self.refused or self.without_targets or self.cut_answers or self.without_end)

    def lines(self) -> list[tuple[str, str]]:
        """Return report lines: a name, and figures as text."""
        endless = (
            "answers without a trained end, because the generation marks of the chat template leave out the stop token"
        )
        return [
            ("conversations refused by the chat template, left out", _share(self.refused, self.conversations)),
            ("conversations without any answer to train, left out", _share(self.without_targets, self.conversations)),
            ("answers cut at the end of the row", _share(self.cut_answers, self.answers)),
            *([(endless, _share(self.without_end, self.answers))] if self.without_end else ()),
        ]

    def words(self) -> str:
        return "; ".join([*(f"{name}: {figures}" for name, figures in self.lines()), *self.reasons])


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole if whole else 0:.1f} %)"
