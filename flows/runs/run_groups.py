"""Interface of run groups: several runs started, shown, ended and continued by a pack as a unit, such as a sweep.

    Pack.run_groups -> kinds() -> on_record: rows of `status`; stop: `down NAME`; due, go_on: duties of the supervisor

The process starting the runs of a group holds the lease `<lease><name>`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from store import packs

WAITING, SUCCEEDED = "waiting", "succeeded"  # States of a run without a pod, and of a completed run.


@dataclass(frozen=True, kw_only=True)
class GroupedRun:
    """A run as recorded by the group."""

    run: str
    state: str
    micro_usd: int = 0
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Additional details of the run for a web page."""


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """A recorded group."""

    name: str
    noun: str
    """Display name of the kind of group, such as "sweep"."""
    provider: str
    runs: Mapping[str, GroupedRun]
    is_over: bool
    """True if no run of the group waits or runs."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Additional details of the group for a web page."""
    evaluate: Callable[[], Mapping[str, Any]] = dict
    """Function that compares the results of the runs, for a web page."""


class RunGroups(Protocol):
    """The groups of a kind."""

    moves: bool = True
    """False if the groups keep files beside the journal that cannot move to a different machine."""

    @property
    def lease(self) -> str:
        """Return the prefix of the lease names, such as "sweep:"."""

    def recorded_groups(self, settings: Settings) -> list[RunGroup]:
        """Return the recorded groups, the most recently changed group first."""

    def started_groups(self, journal: Journal, settings: Settings) -> list[str]:
        """Return the names of the groups with a process, alive or dead."""

    def stop(self, name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
        """End the process of a group permanently; return the live rows of the group's runs and pods."""

    def is_any_active(self, journal: Journal) -> bool:
        """Return True if a live process manages a group."""

    def groups_to_restart(self, journal: Journal, settings: Settings) -> Collection[str]:
        """Return the names of the groups with a dead process and automatic continuation."""

    def restart(self, name: str, journal: Journal, settings: Settings, tell: Say) -> None:
        """Restart the process of a group, and wait for the end of the process."""

    def commands(self, journal: Journal, settings: Settings, names: Sequence[str]) -> Mapping[str, str]:
        """Return the command to continue each of the named groups without automatic continuation, by name."""

    def refusal_of_resume(self, op: Op, settings: Settings) -> str:
        """Return why a run cannot be resumed, such as the end of the group; "" if the run can be resumed."""
        return ""


def kinds() -> list[RunGroups]:
    """Return the kinds of groups of all installed packs."""
    return [packs.load(where)() for where in packs.entries("run_groups").values()]


def recorded_groups(settings: Settings) -> dict[str, RunGroup]:
    """Return the recorded groups of all kinds, by name."""
    return {one.name: one for kind in kinds() for one in kind.recorded_groups(settings)}


def commands(journal: Journal, settings: Settings, names: Sequence[str]) -> dict[str, str]:
    """Return the result of `RunGroups.commands` over all kinds."""
    return {name: line for kind in kinds() for name, line in kind.commands(journal, settings, names).items()}


def is_any_active(journal: Journal) -> bool:
    """Return True if a live process manages a group of any kind."""
    return any(kind.is_any_active(journal) for kind in kinds())


def due(journal: Journal, settings: Settings) -> dict[str, tuple[RunGroups, str]]:
    """Return the kind and name of each group with a process to restart, by lease."""
    return {
        f"{kind.lease}{name}": (kind, name) for kind in kinds() for name in kind.groups_to_restart(journal, settings)
    }
