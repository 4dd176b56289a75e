"""Selection of the pods due to end, and checks for a live process managing a pod.

This module reads rows, leases and settings, and looks at pods; `infra.runs.journal_upkeep` ends the selected pods.
"""

import time

from infra.agent.limits import read_clocks
from infra.agent.process import current_identity
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import BOOTING, CREATING, LOST, PLANNED, READY, TERMINATING, UNKNOWN, Op
from infra.ledger.service_rows import service_lease
from infra.machines.host_memory import map_parallel
from infra.runs import observation, run_rows
from infra.runs.observation import Observation
from infra.selection import registry
from infra.settings import Settings, is_rented

TO_END = (PLANNED, CREATING, UNKNOWN, BOOTING, TERMINATING)  # Pods in these states must be settled.
LAST_LOOK_S = 5.0  # Timeout of the last look at a pod past its limit, before the pod is ended.
CONCLUDE_S = 300.0  # Vendor clock: time past the limit for a keeper to download results.
ALARM_S = 900.0  # Vendor clock: a slower deletion raises an alarm.


def due_pods(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods due to end, oldest first.

    The list holds every pod past a limit, even under a lease. The list also holds pods without a lease holder: pods not
    proven gone after a request to end, and pods whose launch died before the hand-over. No keeper owns a detached pod.
    """
    held, found = journal.leases.held_names(), []
    for op in journal.ops(live=True):
        owners = {service_lease(op.service), "" if op.detached else keeper_lease(run_rows.run_of(op))}
        if op.state != TERMINATING:  # Several processes may request the end of a pod.
            owners.add(run_rows.lease(op.token))
        is_left = op.state in TO_END and is_rented(op.vendor) and not owners & held
        if is_left or is_past_limit(op, settings):
            found.append(op)
    return found


def is_past_limit(op: Op, settings: Settings) -> bool:
    """Return True if a rented pod may have used up its time or money limit; leases do not delay the end of such a pod.

    Return False for unrented pods and for pods of an engine, which ends the pods by itself.
    """
    if not (op.is_live and is_rented(op.vendor)):
        return False
    return bool(spend.due(op, read_clocks(), settings.clock_scale))


def final_observation(op: Op, settings: Settings) -> Observation:
    """Look at a pod due to end, for at most `LAST_LOOK_S` seconds: a hanging pod must not delay the end.

    Return an empty `Observation` for a detached pod, and for any state but READY and LOST.
    """
    if op.detached or op.state not in (READY, LOST):
        return Observation()
    (seen,) = map_parallel(
        lambda one: observation.observe_pod(one, registry.provider(settings, one.vendor)), [op], LAST_LOOK_S
    )
    return seen if isinstance(seen, Observation) else Observation(why=str(seen))


def is_being_concluded(op: Op, seen: Observation, journal: Journal, settings: Settings) -> bool:
    """Return True if a live process is downloading the results of a pod that finished at a limit.

    The keeper has `CONCLUDE_S` seconds past the limit, by the vendor's clock.
    """
    past_s = spend.past_limit_s(op, read_clocks(), settings.clock_scale)
    return bool(seen.verdict) and past_s < CONCLUDE_S and is_kept(op, journal, settings)


def is_kept(op: Op, journal: Journal, settings: Settings) -> bool:
    """Return True if the service controller, or a keeper in a different process, manages this pod."""
    if op.service and journal.leases.holder(service_lease(op.service)):
        return True
    costs = registry.provider(settings, op.vendor).is_rented
    return costs and not op.detached and is_kept_by_another(op, journal)


def is_kept_by_another(op: Op, journal: Journal) -> bool:
    holder = journal.leases.holder(keeper_lease(run_rows.run_of(op)))
    return holder is not None and holder != current_identity()


def overdue(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods still listed `ALARM_S` seconds (15 minutes) after the delete request."""
    return [op for op in journal.ops(live=True) if is_overdue(op, time.time(), settings.clock_scale)]


def is_overdue(op: Op, now: float, scale: float) -> bool:
    """Return True if a rented pod still exists more than `ALARM_S` seconds after the delete request.

    `now` is in UTC epoch seconds; `scale` is the speed of the vendor's clock.
    """
    asked_at = op.del_requested_at
    is_ending = op.state == TERMINATING and is_rented(op.vendor) and asked_at is not None
    return is_ending and (now - (asked_at or 0)) * scale > ALARM_S
