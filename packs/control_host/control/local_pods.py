"""Pods that tie an installation to a machine, because no other machine can look after them."""

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import VENDORS


def refuse_local_pods(journal: Journal, machine: str) -> None:
    """Raise UsageError when a live pod can be managed only by `machine`."""
    tied = [f"{op.run} ({op.vendor})" for op in journal.ops(live=True) if op.vendor not in VENDORS]
    if tied:
        raise UsageError(
            f"only {machine} can manage {', '.join(tied)}: other machines can manage rented pods only. "
            f"Wait for the end of the run, or run: inv down {tied[0].split()[0]}"
        )
