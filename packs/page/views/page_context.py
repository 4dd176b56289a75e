"""Shared data of all views: settings, journal access, and cached queries of runs and artifacts.

Queries of pods contact vendors and machines, so the results are cached independently of the number of browsers: about
one second for local runs and a local store, several seconds for remote runs, minutes for a remote store.
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

HERE_S, ELSEWHERE_S, STORE_ELSEWHERE_S = 0.7, 5.0, 300.0  # maximum cache age in seconds: local, remote, remote store
ENDED = 200  # maximum number of ended runs on the page
MOST_NOTES = 50
T = TypeVar("T")


class CachedValue(Generic[T]):
    """A cached value with an expiry time. Concurrent callers wait during a recomputation."""

    def __init__(self, make: Callable[[], tuple[T, float]]) -> None:
        """Store `make`, which returns the value and the number of seconds until expiry."""
        self._make = make
        self._turn = threading.Lock()
        self._until = -1.0
        self._value: T | None = None

    @property
    def has_value(self) -> bool:
        """Return True if a value was computed before, so that `get` is likely to be fast."""
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
    """Messages about read errors and actions; newest last."""
    cache: dict[Any, Any] = field(default_factory=dict)
    """Cached values of views, by view-specific keys."""
    sources: dict[str, Any] = field(default_factory=dict)
    """Artifacts and folders that the views show as runs, by name; see `packs.page.views.run_sources`."""
    shown_runs: list[str] = field(default_factory=list)
    """Runs that are shown however many ended after them."""
    say: Callable[[str], None] | None = None
    """Function that also gets each message."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._runs: CachedValue[list[PodView]] = CachedValue(self._read_runs)
        self._artifacts: CachedValue[list[Artifact]] = CachedValue(self._read_artifacts)

    def journal(self) -> Journal:
        """Open the journal as a context manager."""
        return Journal.open(self.settings.state_file)

    def runs(self) -> list[PodView]:
        """Return all live runs and the last ended runs, newest first, at most a few seconds old."""
        return self._runs.get()

    def show_run(self, run: str) -> None:
        """Show this run of the journal, however many ended after the run."""
        if run not in {one.run for one in self.runs()}:
            self.shown_runs.append(run)
            self._runs = CachedValue(self._read_runs)

    def artifacts(self) -> list[Artifact]:
        """Return the artifacts of the store, from the cache. Raise StoreError."""
        return self._artifacts.get()

    def add_note(self, words: str) -> None:
        """Add a message for the page unless the last message is the same."""
        with self._turn:
            if not self.notes or self.notes[-1] != words:
                self.notes.append(words)
                del self.notes[:-MOST_NOTES]
                if self.say:
                    self.say(words)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """Return the cached value of a key; compute the value on a cache miss."""
        with self._turn:
            if key not in self.cache:
                self.cache[key] = make()
            return self.cache[key]

    def cached_for_version(self, version: Any, key: Any, make: Callable[[], T]) -> T:
        """Return the cached value of a key; recompute the value if `version` has changed."""
        found: tuple[Any, T] | None = self.cache.get(key)
        if found is None or found[0] != version:
            found = self.cache[key] = (version, make())
        return found[1]

    def _read_runs(self) -> tuple[list[PodView], float]:
        began = time.monotonic()
        with self.journal() as journal:
            over = end_over_limit(journal, self.settings, self.add_note)
            had_to = [one for one in over if one.was_running]
            views = status.with_excess(status.status(journal, self.settings, ended=ENDED), had_to)
            for run in self.shown_runs:
                views += [one for one in status.status(journal, self.settings, run, ended=0) if one.run == run]
        for one in over:
            self.add_note(one.words)
        is_here = all(one.provider == "local" for one in views if one.ended_at is None)
        return views, max(HERE_S if is_here else ELSEWHERE_S, 2 * (time.monotonic() - began))

    def _read_artifacts(self) -> tuple[list[Artifact], float]:
        began, store = time.monotonic(), self.settings.store
        found = list(Store(store).artifacts())
        is_here = credentials.kind(store) == ""
        return found, max(HERE_S, 4 * (time.monotonic() - began)) if is_here else STORE_ELSEWHERE_S
