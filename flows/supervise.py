"""What must go on, looked after: every run elsewhere has a keeper, and every service its controller.

In: the settings of an installation. Out: what was started again, in words. Called after a boot of a control host, when
somebody connects to it, and when an installation has come to this machine.
"""

from collections.abc import Sequence

from flows import follow
from infra.errors import SlipwayError
from infra.ledger.journal import Journal, Op, service_lease
from infra.ledger.life_cycle import LOST, READY
from infra.providers import registry
from infra.runs import keeper, observe, pods
from infra.runs.lookup import way
from infra.runs.timing import Say
from infra.settings import Settings
from serve import controller_client


def ensure(settings: Settings, tell: Say, flags: Sequence[str] = (), also: Sequence[str] = ()) -> list[str]:
    """Start again whatever looks after what is live, where nobody does; return the leases that this was about.

    `flags`: those that lead a command to this journal. `also`: leases that were held until now, somewhere else. What
    cannot be started is told, and holds up nothing else.
    """
    started = []
    with Journal.open(settings.state_file) as journal:
        for lease in wanted(journal, settings, also):
            if journal.holder(lease) is None:
                try:
                    start(lease, journal, settings, tell, flags)
                    started.append(lease)
                except SlipwayError as error:
                    tell(f"{lease}: {error}")
    return started


def wanted(journal: Journal, settings: Settings, also: Sequence[str] = ()) -> list[str]:
    """Return the leases of services, and of runs that are not over and cannot look after themselves.

    A run that is between two pods has no live row; that it is to go on is known by the lease of a keeper that died.
    """
    found = [service_lease(one.name) for one in journal.services()]
    orphaned = journal.abandoned() | set(also)
    for run in journal.runs():
        op, lease = journal.ops(run=run)[-1], keeper.lease_name(run)
        if op.service or op.stays or op.slot != 0 or pods.is_over(op):
            continue
        if journal.holder(pods.lease(op.token)) is not None:  # its launch lives
            continue
        if op.is_live and registry.provider(settings, op.vendor).is_here:
            found += [lease] if _is_dead(settings, op) else []
        elif op.is_live or lease in orphaned:
            found.append(lease)
    return found


def start(lease: str, journal: Journal, settings: Settings, tell: Say, flags: Sequence[str]) -> None:
    """Start what holds that lease: a controller, or a keeper. Raises SlipwayError."""
    kind, _, name = lease.partition(":")
    if kind == "serve":
        controller_client.ensure(name, settings, journal, tell)
    else:
        tell(follow.leave_to_keeper(journal.ops(run=name)[-1], settings, flags))


def _is_dead(settings: Settings, op: Op) -> bool:
    """Tell whether a pod of this machine has lost both its guard and its agent, as after a boot."""
    return op.state in (READY, LOST) and not observe.is_alive(op, way(settings, op))
