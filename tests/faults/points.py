"""Labelled points of a renting process; a trial can kill the process at any point.

    before E, commit E, after E       a change of the journal: E is its event, or take and release of a lease
    before C, sent C, answered C      a request to a vendor: C is create, list, find, delete, ...

The product has no code for points: this module subclasses the journal, and wraps the client of the HTTP library.
"""

import contextlib
import functools
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from infra import journal_file
from infra.ledger.journal import Journal
from infra.ledger.leases import Lease, Leases
from infra.ledger.op import Op

CALLS = (
    ("create", "POST", r"/instances/create$|/rent$|/v2/pods$"),
    ("delete", "POST|DELETE", r"/instances/[^/]+/delete$|/pods/[^/]+$"),
    ("list", "GET", r"/instances$|/pods$"),
    ("find", "GET", r"/instances/[^/]+/info$|/pods/[^/]+$"),
)


@dataclass
class Points:
    """Calls `passed(label, nth)` at each point."""

    passed: Callable[[str, int], None]
    counts: Counter[str] = field(default_factory=Counter)

    def reach(self, label: str) -> None:
        self.counts[label] += 1
        self.passed(label, self.counts[label])

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        self.reach(f"before {name}")
        yield
        self.reach(f"after {name}")


def call_of(method: str, url: str, content: bytes = b"") -> str:
    """Return the name of the call behind a request."""
    path = httpx.URL(url).path
    if path.endswith("/graphql"):
        return "create" if b"mutation" in content else "query"
    found = [name for name, methods, pattern in CALLS if re.fullmatch(methods, method) and re.search(pattern, path)]
    return found[0] if found else "keys" if "/sshkeys" in path else "other"


def watch_requests(points: Points) -> None:
    """Pass points before and after every later request of this process."""
    stream = httpx.AsyncClient.stream

    def watched(self: httpx.AsyncClient, method: str, url: Any, **options: Any) -> Any:
        call = call_of(method, str(url), options.get("content") or b"")
        points.reach(f"before {call}")

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            if event == "http11.send_request_body.complete":
                points.reach(f"sent {call}")
            elif event == "http11.receive_response_body.complete":
                points.reach(f"answered {call}")

        return stream(self, method, url, extensions={"trace": trace}, **options)

    httpx.AsyncClient.stream = watched  # type: ignore[method-assign]


class WatchedJournal(Journal):
    """Passes a point before each commit, during the commit and after the commit."""

    points: Points
    _now = ""

    @staticmethod
    def at(path: Path, environ: Mapping[str, str], points: Points) -> "WatchedJournal":
        made = WatchedJournal(path, journal_file.open_file(path, environ), environ)
        made.points = points
        made._db.set_trace_callback(made._hear)
        return made

    def _hear(self, statement: str) -> None:
        if statement == "COMMIT" and self._now:
            self.points.reach(f"commit {self._now}")

    @contextlib.contextmanager
    def _event_named(self, name: str) -> Iterator[None]:
        outer, self._now = self._now, name
        try:
            with self.points.around(name):
                yield
        finally:
            self._now = outer

    def plan(self, **facts: Any) -> Op:
        with self._event_named("plan"):
            return super().plan(**facts)

    def claim(self, *words: Any) -> Op:
        with self._event_named("claim"):
            return super().claim(*words)

    def advance(self, op: Op, event: str, **facts: Any) -> Op:
        with self._event_named(event):
            return super().advance(op, event, **facts)

    def note(self, op: Op, **facts: Any) -> Op:
        with self._event_named("note"):
            return super().note(op, **facts)

    @property
    def leases(self) -> "WatchedLeases":
        return WatchedLeases(self)


class WatchedLeases(Leases):
    """Passes the same points for taken and released leases."""

    def __init__(self, journal: WatchedJournal) -> None:
        again = functools.partial(Journal.open, journal.path, journal._environ)
        super().__init__(journal._db, journal.writing, (journal.path, journal._file), again)
        self._journal = journal

    def acquire(self, name: str, code: str = "") -> Lease:
        with self._journal._event_named("take"):
            return super().acquire(name, code)

    def release(self, lease: Lease) -> None:
        with self._journal._event_named("release"):
            super().release(lease)


def die() -> None:
    """Die as if killed by the kernel: finish, flush and report nothing."""
    os.kill(os.getpid(), signal.SIGKILL)
