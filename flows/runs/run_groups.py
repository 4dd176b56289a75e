"""The seam of groups of runs: several runs that a pack begins and that are shown, ended and gone on with as one.

    Pack.run_groups -> kinds() -> on_record: rows of `status`; stop: `down NAME`; due, go_on: duties of the supervisor

A sweep is one. The process that begins the runs of a group holds the lease `<lease><name>` meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from store import packs

WAITING, SUCCEEDED = "waiting", "succeeded"  # states of a run that has no pod yet, and of one that made all


@dataclass(frozen=True, kw_only=True)
class GroupedRun:
    """A run as its group has written it down."""

    run: str
    state: str
    micro_usd: int = 0
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More about the run, for a page."""


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """A group on record."""

    name: str
    noun: str
    """The kind of group in words, such as "sweep"."""
    provider: str
    runs: Mapping[str, GroupedRun]
    is_over: bool
    """True if no run of it waits or runs."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More about the group, for a page."""


class RunGroups(Protocol):
    """The groups of one kind."""

    @property
    def lease(self) -> str:
        """Return the beginning of the names of leases, such as "sweep:"."""

    def on_record(self, settings: Settings) -> list[RunGroup]:
        """Return the groups that have written something down, the one that changed last first."""

    def known(self, journal: Journal, settings: Settings) -> list[str]:
        """Return the names of the groups that a process is at work on, or was when it died."""

    def stop(self, name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
        """End the process at work on a group, for good; return the live rows of its runs and pods."""

    def is_at_work(self, journal: Journal) -> bool:
        """Return whether a living process is at work on a group."""

    def due(self, journal: Journal, settings: Settings) -> Collection[str]:
        """Return the names of the groups whose process has died and that go on by themselves."""

    def go_on(self, name: str, journal: Journal, settings: Settings, tell: Say) -> None:
        """Begin the process of such a group again, and wait for its end."""

    def commands(self, journal: Journal, settings: Settings, names: Sequence[str]) -> Mapping[str, str]:
        """Return by name, of these groups, the command that goes on with those that do not go on by themselves."""


def kinds() -> list[RunGroups]:
    """Return the kinds of groups of all installed packs."""
    return [packs.load(where)() for where in packs.entries("run_groups").values()]


def on_record(settings: Settings) -> dict[str, RunGroup]:
    """Return the groups of all kinds that are on record, by name."""
    return {one.name: one for kind in kinds() for one in kind.on_record(settings)}


def commands(journal: Journal, settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Return what `RunGroups.commands` does, of all kinds."""
    return {name: line for kind in kinds() for name, line in kind.commands(journal, settings, names).items()}


def is_at_work(journal: Journal) -> bool:
    """Return whether a living process is at work on a group of any kind."""
    return any(kind.is_at_work(journal) for kind in kinds())


def due(journal: Journal, settings: Settings) -> dict[str, tuple[RunGroups, str]]:
    """Return the groups whose process is to be begun again: kind and name by the lease."""
    return {f"{kind.lease}{name}": (kind, name) for kind in kinds() for name in kind.due(journal, settings)}
