"""The query of a browser to a view, and the view itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from packs.page.views.page_context import PageContext

EVERY_S = 0.7  # interval between looks, while somebody reads


@dataclass(frozen=True)
class ViewQuery:
    """The words after the question mark of a request."""

    query: Mapping[str, str]

    def word(self, name: str) -> str:
        """Return a word, "" where there is none."""
        return self.query.get(name, "")

    def words(self, name: str) -> list[str]:
        """Return the words of a list, each once."""
        return list(dict.fromkeys(filter(None, self.word(name).split(","))))

    def choice(self, name: str, known: Sequence[str]) -> str:
        """Return one of the words that are known, the first by default. Raises UsageError."""
        said = self.word(name) or known[0]
        if said not in known:
            raise UsageError(f"{name} is {said!r}; known: {', '.join(known)}")
        return said

    def number(self, name: str) -> float:
        """Return a bound; without one there is none: infinity, or for `since` less than all. Raises UsageError."""
        said = self.word(name)
        if not said:
            return -math.inf if name == "since" else math.inf
        try:
            found = float(said)
        except ValueError:
            raise UsageError(f"{name} is {said!r}, which is not a number") from None
        if math.isnan(found):
            raise UsageError(f"{name} is no number")
        return found

    def count(self, name: str, usual: int, most: int) -> int:
        """Return a whole number from 0 to `most`. Raises UsageError."""
        said = self.word(name)
        if not said:
            return usual
        if not (said.isascii() and said.isdigit()):
            raise UsageError(f"{name} is {said!r}, which is not a whole number")
        return min(int(said), most)


@dataclass(frozen=True)
class View:
    """A view: what it shows, in parts by name. Parts that have not changed are not sent again."""

    look: Callable[[PageContext, ViewQuery], dict[str, Any]]
    every_s: float = EVERY_S
