"""Ends of runs with all their nodes, of services, and of all pods. An end counts only with proof."""

from collections.abc import Iterator
from dataclasses import dataclass

from flows.supervisor import due, supervisor_client
from infra.errors import SlipwayError, as_slipway_error
from infra.ledger.held_pods import runs_of_pod
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.reconcile import RENTING
from infra.providers import Provider
from infra.runs import pods, run_rows
from infra.runs.journal_upkeep import download_results
from infra.runs.keepers import keeper as keep
from infra.runs.lookup import between_pods, find_run
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost
from serve.processes import controller_client
from store.manifest import StoreError


@dataclass(frozen=True)
class StopResult:
    """The end of one pod or service. `problem`: the reason why the end is not proven, or None."""

    name: str
    problem: SlipwayError | None = None


def end_services(names: list[str], journal: Journal, settings: Settings, tell: Say) -> Iterator[StopResult]:
    """End services in order, and yield each result; continue after an error."""
    for name in names:
        try:
            controller_client.end_service(name, settings, journal, tell)
            tell(f"{name}: ended, nothing of it runs")
            yield StopResult(name)
        except Exception as error:  # An error of a service must not stop the others.
            yield StopResult(name, as_slipway_error(error, name))
    supervisor_client.stop_if_idle(settings)


def rows_of(run: str, journal: Journal) -> list[Op]:
    """Return the pods of a run, or the pods of a single named node. Raises UsageError."""
    op = find_run(journal, run)
    detached = run_rows.detached_of(run_rows.run_of(op), journal)
    if op.rank:
        return [op, *(one for one in detached if one.run == op.run)]
    return [*run_rows.nodes_of(op, journal), *detached]


def all_rows(journal: Journal) -> list[Op]:
    """Return every live pod, and the last pod of each run that a keeper is moving to a new pod."""
    return [*journal.ops(live=True), *between_pods(journal)]


def end_pods(ops: list[Op], journal: Journal, settings: Settings, tell: Say) -> Iterator[StopResult]:
    """End pods in order, and yield each result; continue after an error."""
    for op in dict.fromkeys(ops):
        try:
            end_pod(op, journal, settings, tell)
            yield StopResult(op.run)
        except Exception as error:  # An error of a pod must not stop the others.
            yield StopResult(op.run, as_slipway_error(error, op.run))
    if due.pods_to_end(journal, settings):
        supervisor_client.ensure(settings, waits=False)  # The supervisor repeats the requests until the pods are gone.
    supervisor_client.stop_if_idle(settings)


def end_pod(op: Op, journal: Journal, settings: Settings, tell: Say) -> None:
    """End any runs that share the pod, and then the pod. Raises SlipwayError if the end is not proven."""
    for guest in runs_of_pod(op, journal.ops(live=True)):  # The guests cannot be queried after the end of the pod.
        end_pod(guest, journal, settings, tell)
    op = journal.op(op.token)
    was_live, was_over, vendor = op.is_live, run_rows.is_over(op), registry.provider(settings, op.vendor)
    has_words = was_live and op.address and not op.detached and op.state not in RENTING
    op = pods.ask_to_end(op, journal)  # From now on neither the launch nor a keeper restarts the run.
    if has_words and vendor.is_ephemeral:  # The pod cannot be queried after the end.
        op = save_and_download(op, vendor, journal, settings, tell)
    pods.end(vendor, op, journal)
    keep.end_keeper(op.run, journal)
    if has_words and not vendor.is_ephemeral:
        download_results(op, vendor, settings)
    ended = "had already ended" if was_over else "the pod had already ended; the run does not continue on a new pod"
    tell(f"{op.run}: {'ended, nothing of it runs' if was_live else ended}")


def save_and_download(op: Op, vendor: Provider, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Make a rented pod save, and download the reports. A silent pod does not delay the end."""
    if not op.is_live:
        return op
    keep.end_keeper(op.run, journal, patience_s=0.0)  # The keeper would end the pod immediately after the verdict.
    tell(f"{op.run}: saving and ending")
    try:
        pods.stop_work(vendor, op)
        download_results(op, vendor, settings)
    except ConnectionLost:  # For example, the pod has saved and ended itself.
        tell(f"{op.run}: the connection closed before the pod answered; asking {op.vendor} whether the pod is gone")
    except (SlipwayError, StoreError) as error:
        tell(f"{op.run}: {error}")
    return op
