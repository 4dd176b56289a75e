"""A run followed to its verdict and concluded, or left to a keeper of its own."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from flows import run_leases
from infra.checkout import ROOT
from infra.ledger.journal import Journal, Op
from infra.providers import registry
from infra.runs import snapshot
from infra.runs.follow import Seen
from infra.runs.keeper import Keeper
from infra.runs.settle import end_others, settle
from infra.runs.timing import Say
from infra.settings import Settings

DETACHED = 130  # with which a command leaves that no longer follows


@contextlib.contextmanager
def keeping(op: Op, journal: Journal, settings: Settings, tell: Say) -> Iterator[Iterator[Seen]]:
    """Yield the progress and the verdict of a run, again and again, to its end; this process keeps it meanwhile."""
    keeper = Keeper.of(op, journal, settings, tell)
    run_leases.renew(op, journal.installation, tell)
    with keeper.keeping(op.run):
        yield keeper.keep(op)


def conclude(op: Op, state: str, journal: Journal, settings: Settings, tell: Say) -> None:
    """Settle what has ended after the verdict, and let go what a run that succeeded has held."""
    settle(journal, settings, tell)
    end_others(op, journal, settings, state, tell)
    if state == "succeeded":
        snapshot.forget(settings.homes / op.run)
        run_leases.release(op.store, op.run, journal.installation, tell)


def hand_on(op: Op, settings: Settings, flags: Sequence[str]) -> str:
    """Leave a run: another machine's gets a keeper of its own, what is here keeps itself. Returns which, in words.

    `flags`: those that lead a command to this run's journal.
    """
    if not registry.provider(settings, op.vendor).is_here:
        return leave_to_keeper(op, settings, flags)
    return "its own guard and agent keep it at work on this machine; nobody else is needed"


def leave_to_keeper(op: Op, settings: Settings, flags: Sequence[str]) -> str:
    """Start a keeper of its own for a run. Returns that in words."""
    log = settings.homes / op.run / "keep.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "keep", op.run, *flags]
    with log.open("ab") as file:
        subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    return f"inv keep {op.run} brings it home, and back if its machine fails; it writes to {log}"
