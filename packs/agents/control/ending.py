"""End of an allowance: every run and service that the allowance has started ends, with a line of the receipt each.

`Account` -> `inv down`, `inv serve.down` -> whether everything has ended
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import lookup
from infra.runs.timing import Say
from infra.settings import Settings
from packs.agents.control import files, money, place, taken
from packs.agents.control.account import Account
from packs.agents.control.receipt import Receipt
from packs.agents.control.time_left import why_ended
from packs.agents.records.allowance import PREFIX


def end_all(account: Account, tell: Say) -> bool:
    """End all runs and services once; return whether nothing is left, and no start is under way.

    With a damaged file of the runs, end nothing, and return False until the owner has removed the file.
    """
    is_done = not is_starting(account)  # asked first: a start that ends meanwhile has written its rows
    try:
        with Journal.open(account.settings.state_file) as journal:
            runs = sorted({money.run_of(op) for op in own_rows(account.name, journal, account.settings)})
            services = own_services(account.name, journal, account.settings)
    except SlipwayError as error:
        tell(f"{account.name}: {error}")
        return False
    for name in (*services, *runs):
        is_done = end_one(account, name, tell) and is_done
    return is_done


def is_starting(account: Account) -> bool:
    """Return whether a start holds the lock: its machine may be rented at any time."""
    try:
        with locked(account, fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


@contextlib.contextmanager
def locked(account: Account, flags: int = 0) -> Iterator[int]:
    """Hold the lock of the starts; yield the file descriptor. flags: with LOCK_NB, a held lock raises BlockingIOError.

    A process that inherits the descriptor holds the lock until the process exits, also after the end of this block.
    """
    path = place.folder(account.settings) / f"{account.name}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        yield lock
    finally:
        os.close(lock)


def end_one(account: Account, name: str, tell: Say) -> bool:
    """End a run or service; return whether the end is proven."""
    try:
        end(account, name, tell)
    except SlipwayError as error:
        tell(f"{name}: {error}")
        return False
    tell(f"{name}: ended, nothing of it runs")
    Receipt(account.name, account.settings).add({"at": time.time(), "tool": "end", "run": name, "outcome": "done"})
    return True


def end(account: Account, name: str, tell: Say) -> None:
    """End an own run or service; return when the end is proven. Raises SlipwayError."""
    _end(account, name, tell)
    with contextlib.suppress(SlipwayError):  # the end is proven; the next start sets the budget, too
        account.fit_budget()


def _end(account: Account, name: str, tell: Say) -> None:
    if name in account.started.services:
        if not account.is_ended_service(name):
            account.inv.json("serve.down", {}, [name])
        return
    with Journal.open(account.settings.state_file) as journal:
        is_group = name in taken.groups(journal, account.settings)
    if not is_group:
        account.inv.json("down", {}, [name])
        return
    from flows.pods import stop  # `status` imports this module

    # The owner has since given the name to a group, which `inv down` would end instead.
    with Journal.open(account.settings.state_file) as journal:
        rows = [op for op in own_rows(account.name, journal, account.settings) if money.run_of(op) == name]
        for one in stop.end_pods(rows, journal, account.settings, tell):
            if one.problem:
                raise one.problem


def own_rows(name: str, journal: Journal, settings: Settings) -> list[Op]:
    """Return the rows of the runs of an allowance that are live, or between two pods, without replicas of services."""
    runs = {*files.started(name, settings).runs}
    rows = [*journal.ops(live=True), *lookup.between_pods(journal)]
    return [op for op in dict.fromkeys(rows) if money.run_of(op) in runs and op.budget_name == f"{PREFIX}{name}"]


def allowance_of(op: Op, settings: Settings) -> str:
    """Return the allowance that has started the run or service of a row; "" = none. A damaged file names none."""
    for name in files.names(settings):
        with contextlib.suppress(SlipwayError):
            started = files.started(name, settings)
            is_run = money.run_of(op) in started.runs and op.budget_name == f"{PREFIX}{name}"
            if is_run or op.service in started.services:
                return name
    return ""


def refusal_of_resume(op: Op, settings: Settings) -> str:
    """Return why a run cannot be resumed: the allowance of the run has ended; "" if the run can be resumed."""
    name = allowance_of(op, settings)
    why = why_ended(name, settings) if name else ""
    return f"{op.run} belongs to the allowance {name}, which would end the run again: {why}" if why else ""


def own_services(name: str, journal: Journal, settings: Settings) -> list[str]:
    """Return the services of an allowance that have not ended."""
    return [one for one in files.started(name, settings).services if money.is_wanted(one, journal)]
