"""Query parameters of a view request, and the record of a view."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from packs.page.views.page_context import PageContext

EVERY_S = 0.7  # seconds between two looks of a stream


@dataclass(frozen=True)
class ViewQuery:
    """The query parameters of a request."""

    query: Mapping[str, str]

    def word(self, name: str) -> str:
        """Return a parameter, or "" if absent."""
        return self.query.get(name, "")

    def words(self, name: str) -> list[str]:
        """Return the distinct entries of a comma-separated list."""
        return list(dict.fromkeys(filter(None, self.word(name).split(","))))

    def choice(self, name: str, known: Sequence[str]) -> str:
        """Return a parameter with fixed values, the first by default. Raise UsageError for an unknown value."""
        said = self.word(name) or known[0]
        if said not in known:
            raise UsageError(f"{name} is {said!r}; known: {', '.join(known)}")
        return said

    def number(self, name: str) -> float:
        """Return a bound as a float. Without a value, return -inf for `since` and inf otherwise.

        Raise UsageError for text and NaN.
        """
        said = self.word(name)
        if not said:
            return -math.inf if name == "since" else math.inf
        try:
            found = float(said)
        except ValueError:
            raise UsageError(f"{name} is {said!r}; expected a number") from None
        if math.isnan(found):
            raise UsageError(f"{name} is not a number")
        return found

    def count(self, name: str, usual: int, most: int) -> int:
        """Return a non-negative integer, `usual` if absent, capped at `most`. Raise UsageError for other text."""
        said = self.word(name)
        if not said:
            return usual
        if not (said.isascii() and said.isdigit()):
            raise UsageError(f"{name} is {said!r}; expected a whole number")
        return min(int(said), most)


@dataclass(frozen=True)
class View:
    """A view: a function that returns named parts. Streams send only changed parts."""

    render: Callable[[PageContext, ViewQuery], dict[str, Any]]
    every_s: float = EVERY_S
