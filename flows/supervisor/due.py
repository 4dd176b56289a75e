"""Work that the supervisor is to look after, as the journal tells it.

In: the journal. Out: runs that are to go on and that nobody keeps, pods that are to end and that nobody ends; whether
there is anything at all, which is when a supervisor is needed.
"""

from flows.runs import run_groups
from infra.ledger import service_rows
from infra.ledger.budgets import is_recent
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.life_cycle import LOST, READY
from infra.ledger.op import Op
from infra.notices import outbox
from infra.notices.tell import names_of
from infra.rehearsal import world_files
from infra.runs import run_rows, sight
from infra.runs.keepers.due_ends import to_end
from infra.runs.keepers.recovery import recovers
from infra.runs.lookup import way
from infra.settings import LOCAL, Settings, is_rented
from store import packs


def runs_to_keep(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rows of runs on other machines that are to go on and that nobody keeps, nor is about to.

    Also of pods of a set that come back when they are taken away. Nothing that is rented once its rehearsal has ended.
    """
    held, left = journal.leases.held(), journal.leases.abandoned()
    newest, has_ended = {op.run: op for op in journal.ops()}, world_files.has_ended(settings.rehearsal)
    found = []
    for op in newest.values():
        if not op.is_head or has_ended and is_rented(op.vendor):
            continue
        if op.vendor in packs.engines() or op.service or run_rows.run_of(op) != op.run or run_rows.is_over(op):
            continue
        was_kept = keeper_lease(op.run) in left
        if op.stays and not op.target and not recovers(op):
            continue  # an idle pod is held by its guard
        if op.vendor == LOCAL and not (was_kept and is_dead(op, settings)):
            continue  # a run on this machine keeps itself, as long as the machine runs
        is_at_work = op.state in (READY, LOST)
        if not (is_at_work or was_kept and (op.is_live or is_recent(journal, op.run))):
            continue
        if keeper_lease(op.run) not in held:
            found.append(op)
    return found


def is_dead(op: Op, settings: Settings) -> bool:
    """Return whether a pod of this machine has lost both its guard and its agent, as after a boot."""
    return op.state in (READY, LOST) and not sight.is_alive(op, way(settings, op))


def is_needed(journal: Journal, settings: Settings) -> bool:
    """Return whether there is anything that somebody has to look after."""
    is_left = bool(service_rows.every(journal) or runs_to_keep(journal, settings) or pods_to_end(journal, settings))
    is_left = is_left or bool(run_groups.due(journal, settings)) or run_groups.is_at_work(journal)
    return is_left or is_watch_wanted(journal, settings)


def pods_to_end(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods that are due to end, none once the market of a rehearsal has ended."""
    return [] if world_files.has_ended(settings.rehearsal) else to_end(journal, settings)


def runs_to_watch(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rows of what lives and of which somebody wants to be told."""
    return [op for op in journal.ops(live=True) if op.is_head and not op.service and names_of(op, settings)]


def is_watch_wanted(journal: Journal, settings: Settings) -> bool:
    """Return whether anybody wants to be told of something that lives, or a notice waits to be sent."""
    return bool(runs_to_watch(journal, settings)) or outbox.waits(settings)
