"""The data that all views share: the settings, the current journal, and looks at runs that are not repeated needlessly.

A look at pods asks their vendors and their machines. Those of this machine are looked at each second; where a run is
on another one, every few seconds, however many browsers are open. A store of this machine is looked at each second,
any other every few minutes.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flows.reading import status
from flows.supervisor.over_limit import end_over_limit
from infra.ledger.journal import Journal
from infra.records import PodView
from infra.settings import Settings
from store import credentials
from store.artifacts.artifacts import Store
from store.manifest import Artifact

HERE_S, ELSEWHERE_S, STORE_ELSEWHERE_S = 0.7, 5.0, 300.0  # largest age of a look
ENDED = 200  # runs that have ended, and are shown
MOST_NOTES = 50
T = TypeVar("T")


class Fresh(Generic[T]):
    """A value that is made again when it is older than it says it may be; whoever asks meanwhile waits for it."""

    def __init__(self, make: Callable[[], tuple[T, float]]) -> None:
        """Take what makes it: that returns the value, and for how many seconds it is good."""
        self._make = make
        self._turn = threading.Lock()
        self._until = -1.0
        self._value: T | None = None

    @property
    def is_made(self) -> bool:
        """Tell whether it was made before, so that it is soon there."""
        return self._value is not None

    def get(self) -> T:
        with self._turn:
            if time.monotonic() >= self._until:
                self._value, good_s = self._make()
                self._until = time.monotonic() + good_s
            return self._value  # type: ignore[return-value]


@dataclass
class PageContext:
    """The shared data of the views."""

    settings: Settings
    acts_allowed: bool = False
    notes: list[str] = field(default_factory=list)
    """Messages about what could not be read, and about acts; newest last."""
    kept: dict[Any, Any] = field(default_factory=dict)
    """Values that views keep between two looks, by keys of their own."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._runs: Fresh[list[PodView]] = Fresh(self._look)
        self._artifacts: Fresh[list[Artifact]] = Fresh(self._look_at_store)

    def journal(self) -> Journal:
        """Open the journal; for a `with`."""
        return Journal.open(self.settings.state_file)

    def runs(self) -> list[PodView]:
        """Return all that is live and the last that ended, newest first, as a look of just now has it."""
        return self._runs.get()

    def artifacts(self) -> list[Artifact]:
        """Return the artifacts of the store, by their names. Raises StoreError."""
        return self._artifacts.get()

    def tell(self, words: str) -> None:
        """Keep what was said for the page, once."""
        with self._turn:
            if not self.notes or self.notes[-1] != words:
                self.notes.append(words)
                del self.notes[:-MOST_NOTES]

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value under a key, made where it is not there."""
        with self._turn:
            if key not in self.kept:
                self.kept[key] = make()
            return self.kept[key]

    def keep_for(self, version: Any, key: Any, make: Callable[[], T]) -> T:
        """Return the value under a key, made again where it was made for another version of what it depends on."""
        found: tuple[Any, T] | None = self.kept.get(key)
        if found is None or found[0] != version:
            found = self.kept[key] = (version, make())
        return found[1]

    def _look(self) -> tuple[list[PodView], float]:
        began = time.monotonic()
        with self.journal() as journal:
            over = end_over_limit(journal, self.settings, self.tell)
            had_to = [one for one in over if one.had_to_be_ended]
            views = status.with_excess(status.status(journal, self.settings, ended=ENDED), had_to)
        for one in over:
            self.tell(one.words)
        is_here = all(one.provider == "local" for one in views if one.ended_at is None)
        return views, max(HERE_S if is_here else ELSEWHERE_S, 2 * (time.monotonic() - began))

    def _look_at_store(self) -> tuple[list[Artifact], float]:
        began, store = time.monotonic(), self.settings.store
        found = list(Store(store).artifacts())
        is_here = credentials.kind(store) == ""
        return found, max(HERE_S, 4 * (time.monotonic() - began)) if is_here else STORE_ELSEWHERE_S
