"""Selection of the work for the supervisor, from the journal.

The module returns runs that must continue without a keeper, and rented pods due to end. `is_needed` decides if a
supervisor must run at all.
"""

from flows.runs import run_groups
from infra.ledger import service_rows
from infra.ledger.budgets import is_recent
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import LOST, READY, Op
from infra.notices import outbox
from infra.notices.outbox import names_of
from infra.rehearsal import world_files
from infra.runs import observation, run_rows
from infra.runs.keepers.due_ends import due_pods
from infra.runs.keepers.recovery import recovers
from infra.runs.lookup import transport_to, was_restart_cut_off
from infra.settings import LOCAL, Settings, is_rented
from store import packs


def runs_to_keep(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rows of runs to continue that have no keeper.

    The list includes pods of a set with automatic replacement, and a local run that lost guard and agent while kept.
    After the end of a rehearsal, no rented run is returned.
    """
    held, left = journal.leases.held_names(), journal.leases.abandoned_names()
    newest, has_ended = {op.run: op for op in journal.ops()}, world_files.has_ended(settings.rehearsal)
    found = []
    for op in newest.values():
        if not op.is_head or has_ended and is_rented(op.vendor):
            continue
        if op.vendor in packs.engines() or op.service or run_rows.run_of(op) != op.run or run_rows.is_over(op):
            continue
        was_kept = keeper_lease(op.run) in left
        if op.outlives_run and not op.target and not recovers(op):
            continue  # The guard holds an idle pod.
        if op.vendor == LOCAL and not (was_kept and is_dead(op, settings)):
            continue  # A local run keeps itself while the machine is up.
        is_at_work = op.state in (READY, LOST)
        if not (is_at_work or was_kept and (op.is_live or is_recent(journal, op.run))):
            continue
        if keeper_lease(op.run) not in held and not was_restart_cut_off(op, journal):
            found.append(op)
    return found


def is_dead(op: Op, settings: Settings) -> bool:
    """Return True if a local pod has lost both guard and agent, as after a reboot."""
    return op.state in (READY, LOST) and not observation.is_alive(op, transport_to(settings, op))


def is_needed(journal: Journal, settings: Settings) -> bool:
    """Return True if the supervisor has work: services, runs, pods to end, run groups or notices."""
    is_left = bool(
        service_rows.list_services(journal) or runs_to_keep(journal, settings) or pods_to_end(journal, settings)
    )
    is_left = is_left or bool(run_groups.due(journal, settings)) or run_groups.is_any_active(journal)
    return is_left or is_watch_wanted(journal, settings)


def pods_to_end(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rented pods due to end; [] once the simulated market of a rehearsal has ended."""
    return [] if world_files.has_ended(settings.rehearsal) else due_pods(journal, settings)


def runs_to_watch(journal: Journal, settings: Settings) -> list[Op]:
    """Return the rows of live runs with a notification hook."""
    return [op for op in journal.ops(live=True) if op.is_head and not op.service and names_of(op, settings)]


def is_watch_wanted(journal: Journal, settings: Settings) -> bool:
    """Return True if a live run has a notification hook, or a notice is still unsent."""
    return bool(runs_to_watch(journal, settings)) or outbox.waits(settings)
