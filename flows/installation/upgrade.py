"""The upgrade of processes of older code: they leave, the journal is migrated, processes of this code take over."""

import time
from collections.abc import Collection, Iterator

from flows.supervisor import supervisor_client
from infra.errors import SlipwayError
from infra.ledger import service_rows
from infra.ledger import upgrade as handing_over
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.service_rows import service_lease
from infra.runs import pods
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.units import duration
from serve.processes import controller_client

TAKE_OVER_S = 60.0
POLL_S = 0.2


def hand_over(settings: Settings, tell: Say) -> list[str]:
    """Ask processes of other code to leave, and return the leases that they held. Raise SlipwayError when one stays."""
    return handing_over.hand_over(settings.state_file, tell)


def take_over(left: Collection[str], journal: Journal, settings: Settings, tell: Say) -> dict[str, int]:
    """Start what looks after those of the leases that want a holder again; return its process for each.

    Raise SlipwayError when nobody takes over.
    """
    wanted = set(_wanted(journal, settings))
    due = [one for one in left if one in wanted]
    for lease in due:
        kind, _, name = lease.partition(":")
        if kind == "serve":
            controller_client.ensure(name, settings, journal, tell)
    supervisor_client.ensure(settings)
    deadline = time.monotonic() + TAKE_OVER_S
    while missing := set(due) - journal.leases.held():
        if time.monotonic() > deadline:
            raise SlipwayError(
                f"no process has taken over {', '.join(sorted(missing))} after {duration(TAKE_OVER_S)}; see "
                "keep.log and controller.log beside their logs, and run: ./inv status"
            )
        time.sleep(POLL_S)
    return {one.lease: one.process.pid for one in journal.leases.holders() if one.lease in due}


def _wanted(journal: Journal, settings: Settings) -> Iterator[str]:
    """Yield the leases of services, and of runs elsewhere that are not over."""
    yield from (service_lease(one.name) for one in service_rows.every(journal))
    for op in journal.ops(live=True):
        is_ours_alone = op.service or registry.provider(settings, op.vendor).is_here
        if not is_ours_alone and not pods.is_over(op):
            yield keeper_lease(op.run)
