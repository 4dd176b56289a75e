"""The pods that are due to end, and whether a living process looks after them.

In: rows of the journal, its leases, settings; a last look at a pod. Out: rows and answers. `infra.runs.settle` ends
what is due.
"""

import time

from infra.agent.limits import read_clocks
from infra.agent.process import myself
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.life_cycle import BOOTING, CREATING, LOST, PLANNED, READY, TERMINATING, UNKNOWN
from infra.ledger.op import Op
from infra.ledger.service_rows import service_lease
from infra.machines.host_memory import at_once
from infra.runs import run_rows, sight
from infra.runs.sight import Sight
from infra.selection import registry
from infra.settings import Settings, is_rented

TO_END = (PLANNED, CREATING, UNKNOWN, BOOTING, TERMINATING)  # states of a pod that must be settled
LAST_LOOK_S = 5.0  # at a pod that is past its limit, before it is ended
CONCLUDE_S = 300.0  # by the vendor's clock: time past its limit for a keeper to bring home what a pod has made
ALARM_S = 900.0  # on the vendor's clock: whoever is asked to delete a pod has done it by then


def to_end(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods that are to end, oldest first.

    Those past a limit, whoever looks after them; and those that nobody looks after which were asked to end and are not
    proven gone, or whose launch died before the hand-over.
    """
    held, found = journal.leases.held(), []
    for op in journal.ops(live=True):
        owners = {keeper_lease(run_rows.run_of(op)), service_lease(op.service)}
        if op.state != TERMINATING:  # which may be asked for by several
            owners.add(run_rows.lease(op.token))
        is_left = op.state in TO_END and is_rented(op.vendor) and not owners & held
        if is_left or is_past_limit(op, settings):
            found.append(op)
    return found


def is_past_limit(op: Op, settings: Settings) -> bool:
    """Return whether a rented pod may have used up its time or its money: then no lease keeps it from being ended.

    An engine ends what it has rented.
    """
    if not (op.is_live and is_rented(op.vendor)):
        return False
    return bool(spend.due(op, read_clocks(), settings.clock_scale))


def last_look(op: Op, settings: Settings) -> Sight:
    """Look at the pod of a row that is to end: a pod that hangs must not hold up its end for longer than this."""
    if op.detached or op.state not in (READY, LOST):
        return Sight()
    (seen,) = at_once(lambda one: sight.look(one, registry.provider(settings, one.vendor)), [op], LAST_LOOK_S)
    return seen if isinstance(seen, Sight) else Sight(why=str(seen))


def is_being_concluded(op: Op, seen: Sight, journal: Journal, settings: Settings) -> bool:
    """Return whether a living process is bringing home the results of a pod whose work ended at its limit just now."""
    past_s = spend.past_limit_s(op, read_clocks(), settings.clock_scale)
    return bool(seen.verdict) and past_s < CONCLUDE_S and is_kept(op, journal, settings)


def is_kept(op: Op, journal: Journal, settings: Settings) -> bool:
    """Return whether another process manages the pod of this row: its service's controller, or its run's keeper."""
    if op.service and journal.leases.holder(service_lease(op.service)):
        return True
    costs = registry.provider(settings, op.vendor).is_rented
    return costs and not op.detached and is_kept_by_another(op, journal)


def is_kept_by_another(op: Op, journal: Journal) -> bool:
    holder = journal.leases.holder(keeper_lease(run_rows.run_of(op)))
    return holder is not None and holder != myself()


def overdue(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods that were asked to end a quarter of an hour ago and that their vendors still have."""
    return [op for op in journal.ops(live=True) if is_overdue(op, time.time(), settings.clock_scale)]


def is_overdue(op: Op, now: float, scale: float) -> bool:
    """Return whether a rented pod should have been gone for long."""
    asked_at = op.del_requested_at
    is_ending = op.state == TERMINATING and is_rented(op.vendor) and asked_at is not None
    return is_ending and (now - (asked_at or 0)) * scale > ALARM_S
