"""Pods and groups of runs that tie an installation to a machine, because no other machine can look after them."""

from flows.runs import run_groups
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import VENDORS, Settings


def refuse_unmovable_groups(journal: Journal, settings: Settings, machine: str) -> None:
    """Raise UsageError for a live group of runs that cannot move to a different machine, such as an allowance."""
    tied = [name for kind in run_groups.kinds() if not kind.moves for name in kind.started_groups(journal, settings)]
    if tied:
        raise UsageError(
            f"{', '.join(tied)} cannot leave {machine}, and nothing was changed. End all runs of it first: "
            f"inv down {tied[0]}"
        )


def refuse_local_pods(journal: Journal, machine: str) -> None:
    """Raise UsageError when a live pod can be managed only by `machine`."""
    tied = [f"{op.run} ({op.vendor})" for op in journal.ops(live=True) if op.vendor not in VENDORS]
    if tied:
        raise UsageError(
            f"only {machine} can manage {', '.join(tied)}: other machines can manage rented pods only. "
            f"Wait for the end of the run, or run: inv down {tied[0].split()[0]}"
        )
