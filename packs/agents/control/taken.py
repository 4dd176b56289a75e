"""Names in use on this installation. No name of a run or service of an allowance is the beginning of a name in use.

Journal -> the names in use -> the name of the next run or service of an allowance

Commands of `inv` find a run or service by name, then by the beginning of a name, and a group before a run.
"""

import re
from collections.abc import Collection, Iterable

from flows.runs import run_groups
from infra.errors import UsageError
from infra.ledger import service_rows, wait_queue
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.agents.records.allowance import Allowance


def names(journal: Journal, settings: Settings) -> set[str]:
    """Return the names of all runs, sets of pods, services and groups, alive or ended."""
    rows = journal.ops()
    found = {op.run for op in rows} | {op.owner for op in rows} | services(journal)
    found |= {one.run for one in wait_queue.waiting(journal)} | {*run_groups.recorded_groups(settings)}
    return (found | groups(journal, settings)) - {""}


def services(journal: Journal) -> set[str]:
    """Return the names of services that have not ended."""
    return {one.name for one in service_rows.list_services(journal)}


def groups(journal: Journal, settings: Settings) -> set[str]:
    """Return the names of groups that `inv down NAME` ends."""
    return {name for kind in run_groups.kinds() for name in kind.started_groups(journal, settings)}


def check_allowance(name: str, known: Iterable[str], allowances: Iterable[str]) -> None:
    """Raise UsageError for the name of a new allowance whose runs could be confused with other runs.

    known: names in use. allowances: names of all allowances.
    """
    if clash := next((one for one in sorted(known) if one == name or one.startswith(f"{name}-")), ""):
        raise UsageError(f"{name}: a run, service or group is called {clash}; choose another name for the allowance")
    for one in sorted(allowances):
        long, short = sorted((one, name), key=len, reverse=True)
        if re.match(f"{re.escape(short)}-[0-9]", long):
            raise UsageError(f"{name}: runs of the allowance {short} are called {short}-1, {short}-2; choose another")


def next_number(one: Allowance, number: int, known: Collection[str], served: Collection[str]) -> int:
    """Return the next free number of a run or service after `number`. Raises UsageError if no number is free.

    known: names in use. served: names of services that have not ended.
    """
    if one.name in served:  # replicas of that service would be called like runs of the allowance
        raise UsageError(
            f"a service of the owner is called {one.name}, like the allowance; the owner must end it first"
        )
    number += 1
    while any(name.startswith(one.run_name(number)) for name in known):
        number += 1
    return number
