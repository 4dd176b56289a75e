"""Ending what runs: a run with all its nodes, a service, or everything. Nothing is called ended without proof."""

from collections.abc import Iterator
from dataclasses import dataclass

from flows.supervisor import due, supervisor_client
from infra.errors import SlipwayError, as_told
from infra.ledger.held_pods import guests_of
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.reconcile import RENTING
from infra.providers import Provider
from infra.runs import pods, run_rows
from infra.runs.keepers import keeper as keep
from infra.runs.lookup import between_pods, find_run
from infra.runs.settle import bring_home
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.transport.protocol import Lost
from serve.processes import controller_client
from store.manifest import StoreError


@dataclass(frozen=True)
class Ended:
    """One thing that was to end. `problem`: why that is not proven, None when nothing of it runs."""

    name: str
    problem: SlipwayError | None = None


def services(names: list[str], journal: Journal, settings: Settings, tell: Say) -> Iterator[Ended]:
    """End services, one after the other, whatever becomes of those before."""
    for name in names:
        try:
            controller_client.finish(name, settings, journal, tell)
            tell(f"{name}: ended, nothing of it runs")
            yield Ended(name)
        except Exception as error:  # an error about one run must not keep the others from ending
            yield Ended(name, as_told(error, name))
    supervisor_client.leave_if_done(settings)


def rows_of(run: str, journal: Journal) -> list[Op]:
    """Return the pods that belong to a run, or to the one node that is named. Raises UsageError."""
    op = find_run(journal, run)
    detached = run_rows.detached_of(run_rows.run_of(op), journal)
    if op.rank:
        return [op, *(one for one in detached if one.run == op.run)]
    return [*run_rows.nodes_of(op, journal), *detached]


def all_rows(journal: Journal) -> list[Op]:
    """Return every live pod, and the last pod of each run that its keeper is about to continue on another one."""
    return [*journal.ops(live=True), *between_pods(journal)]


def rows(ops: list[Op], journal: Journal, settings: Settings, tell: Say) -> Iterator[Ended]:
    """End pods, one after the other, whatever becomes of those before."""
    for op in dict.fromkeys(ops):
        try:
            end(op, journal, settings, tell)
            yield Ended(op.run)
        except Exception as error:  # likewise
            yield Ended(op.run, as_told(error, op.run))
    if due.pods_to_end(journal, settings):
        supervisor_client.ensure(settings, waits=False)  # it asks again until they are gone
    supervisor_client.leave_if_done(settings)


def end(op: Op, journal: Journal, settings: Settings, tell: Say) -> None:
    """End a pod, and before it the runs that share it. Raises SlipwayError when it is not proven that nothing runs."""
    for guest in guests_of(op, journal.ops(live=True)):  # nothing can be asked of them afterwards
        end(guest, journal, settings, tell)
    op = journal.op(op.token)
    was_live, was_over, vendor = op.is_live, run_rows.is_over(op), registry.provider(settings, op.vendor)
    has_words = was_live and op.address and not op.detached and op.state not in RENTING
    op = pods.ask_to_end(op, journal)  # from now on neither its launch nor a keeper brings it back
    if has_words and vendor.fleeting:  # nothing can be asked of it afterwards
        op = last_rites(op, vendor, journal, settings, tell)
    pods.end(vendor, op, journal)
    keep.end_keeper(op.run, journal)
    if has_words and not vendor.fleeting:
        bring_home(op, vendor, settings)
    ended = "had ended already" if was_over else "its pod had ended already; it is not continued on another one"
    tell(f"{op.run}: {'ended, nothing of it runs' if was_live else ended}")


def last_rites(op: Op, vendor: Provider, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Make a rented pod save, and download its reports. One that does not answer is ended all the same."""
    if not op.is_live:
        return op
    keep.end_keeper(op.run, journal, patience_s=0.0)  # the keeper would end the pod as soon as it has a verdict
    tell(f"{op.run}: saving and ending")
    try:
        pods.stop_work(vendor, op)
        bring_home(op, vendor, settings)
    except Lost:  # as when a pod has saved, and ends itself
        tell(f"{op.run}: the connection closed before the pod had answered; asking {op.vendor} whether it is gone")
    except (SlipwayError, StoreError) as error:
        tell(f"{op.run}: {error}")
    return op
