"""Upkeep of the journal: download the output of pods without a follower, and close the rows of ended pods.

`settle` reads the journal and the settings, advances rows, ends pods, and copies logs and artifacts to the local
mirror. `tell` receives findings and errors; an error at one pod or vendor never stops the upkeep of the others.
"""

import time
from collections.abc import Collection
from typing import Any

from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError, describe
from infra.journal_file import Fenced
from infra.ledger.journal import Journal
from infra.ledger.op import ASKED, LOST, READY, Op
from infra.ledger.reconcile import Action, AdoptedRow, Delete, RowEvent, reconcile_in_turn
from infra.notices.outbox import notify_end
from infra.providers import Provider
from infra.providers.by_name import own_providers
from infra.runs import observation, pods, run_rows
from infra.runs.keepers.due_ends import (
    final_observation,
    is_being_concluded,
    is_kept,
    is_kept_by_another,
    is_past_limit,
)
from infra.runs.observation import AskedParties, Observation
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import VENDORS, Settings, is_rented
from infra.transport.protocol import Meter
from store.artifacts.artifacts import Store
from store.manifest import StoreError

OTHERS_S = 20.0


def settle(
    journal: Journal,
    settings: Settings,
    tell: Say,
    only: Collection[str] | None = None,
    own: Collection[str] | None = None,
    waits: bool = True,
) -> list[Op]:
    """Settle pods without a follower: download their output, then end the rows of finished work; return the ended rows.

    `only` limits the tokens; None means all live rows. A silent pod stays unchanged, and the error goes to `tell`.
    `own` names the extension providers allowed to run code, beside providers with live pods; None means all. `waits` is
    passed to `pods.settle`.
    """
    reconcile_accounts(journal, settings, tell, own)
    tokens = [op.token for op in journal.ops(live=True) if only is None or op.token in only]
    return settle_rows(journal, settings, tell, tokens, waits)


def settle_rows(
    journal: Journal, settings: Settings, tell: Say, tokens: Collection[str], waits: bool = True
) -> list[Op]:
    """Settle the rows with these tokens, without a reconciliation of vendor listings; return the ended rows."""
    ended = []
    for op in journal.ops(live=True):
        if op.token in tokens:
            try:
                if is_past_limit(op, settings):
                    now = end_past_limit(op, final_observation(op, settings), journal, settings, tell, waits)
                elif is_kept(op, journal, settings):
                    continue
                else:
                    now = _settle(op, journal, settings, tell, waits)
                if not now.is_live:
                    ended.append(now)
            except Fenced:  # A different process settles the row at the same time and reports the end.
                continue
            except Exception as error:  # An error at one row must not stop the others.
                if waits or not isinstance(error, pods.StillBills):  # Without waiting, the request is too recent.
                    tell(f"{op.run}: {describe(error).removeprefix(f'{op.run}: ')}")
    return ended


def end_past_limit(op: Op, seen: Observation, journal: Journal, settings: Settings, tell: Say, waits: bool) -> Op:
    """End a pod past the limit regardless of leases, and return the row.

    Raises the errors of the vendor, and Fenced if a different process has just ended the pod. Return the row unchanged
    while a keeper downloads the last results.
    """
    if is_being_concluded(op, seen, journal, settings):
        return op
    return _settle(op, journal, settings, tell, waits, seen)


def _settle(
    op: Op, journal: Journal, settings: Settings, tell: Say, waits: bool, seen: Observation | None = None
) -> Op:
    """Settle a row, and return the new row. Raises the errors of the pod and the vendor.

    `seen` is a recent observation of the pod, if available.
    """
    vendor = registry.provider(settings, op.vendor)
    if seen is None and not op.detached and op.state in (READY, LOST):
        seen = observation.observe_pod(op, vendor, pods.LOOK)
    verdict = dict(seen.verdict) if seen else {}
    if verdict.get("state") == NODE_LOST and is_kept_by_another(op, journal):
        return op  # The keeper restarts the run.
    if verdict:
        download_results(op, vendor, settings)
    ended = pods.settle(vendor, op, journal, seen, waits)
    if vendor.is_ephemeral and not (ended.is_live or verdict):  # The pod may have ended itself.
        verdict = save_final_verdict(ended, settings, tell)
    if not ended.is_live and op.is_head:
        notify_end(ended, verdict.get("state") or ended_how(ended), journal, settings, tell, verdict)
    return ended


def ended_how(op: Op) -> str:
    """Return the outcome of a pod without a verdict, as a display word."""
    return "stopped" if op.outcome == ASKED else op.outcome or "lost"


def reconcile_accounts(journal: Journal, settings: Settings, tell: Say, reached: Collection[str] | None = None) -> None:
    """Compare the journal with the listing of each vendor; adopt or end our unknown pods, and report each action.

    `reached` has the meaning of `own` in `settle`.
    """
    billing = {op.vendor for op in journal.ops(live=True) if is_rented(op.vendor)}
    keyed = [name for name, key in VENDORS.items() if name in billing or getattr(settings, key)]
    own, unread = own_providers(settings)
    for problem in unread:
        tell(problem)
    own = [name for name in own if reached is None or name in reached]
    for name in dict.fromkeys([*keyed, *own, *sorted(billing)]):
        try:
            done = reconcile_in_turn(registry.provider(settings, name), journal)
        except Exception as error:  # An error at one vendor must not stop the others.
            tell(f"{name}: {describe(error)}")
            continue
        for action in done.actions:
            tell(f"{name}: {describe_action(action)}")
            if isinstance(action, RowEvent) and action.event == "gone":
                save_final_verdict(journal.op(action.token), settings, tell)
            if isinstance(action, AdoptedRow) and not action.is_kept:
                notify_end(journal.op(action.pod.token), "orphan", journal, settings, tell)
        for problem in done.problems:
            tell(problem)


def save_final_verdict(op: Op, settings: Settings, tell: Say) -> dict[str, Any]:
    """Return the verdict of a gone pod; {} when no verdict can be read now."""
    from infra.runs.sync import mirror  # Every command settles, and few find a file to copy.

    try:
        return mirror.final_verdict(op, RunHome.for_run(op.run, settings.homes))
    except StoreError as error:
        tell(f"{op.run}: {error}")
        return {}


def describe_action(action: Action) -> str:
    if isinstance(action, AdoptedRow):
        if action.is_kept:
            return f"{action.pod.pod_id} is older than the new journal: the pod is kept, and bills; see ./inv status"
        return f"{action.pod.pod_id} has the mark of this installation, but no row in the journal: ending the pod"
    if isinstance(action, Delete):
        return f"{action.pod_id}: end requested"
    return f"{action.token}: {action.event} {action.facts.get('reason', '')}".rstrip()


def download_results(op: Op, vendor: Provider, settings: Settings, meter: Meter | None = None) -> list[str]:
    """Download logs, reports and artifacts of a pod; return the names of the artifacts.

    Raises SlipwayError, StoreError.
    """
    from infra.runs.sync import mirror  # see save_final_verdict

    transport, home = vendor.reach(observation.pod_of(op)), RunHome.for_run(op.run, settings.homes)
    mirror.bring_logs(op, transport, home)
    reports.download(op, transport, home)
    if not vendor.pod_store or op.rank > 0:  # Other nodes keep their output.
        return []
    return mirror.bring_artifacts(op, vendor.pod_store, transport, Store(op.store), home, meter)


def end_others(op: Op, journal: Journal, settings: Settings, state: str, tell: Say) -> None:
    """End the other nodes of a run with a verdict: wait up to `OTHERS_S` seconds, then end the pods."""
    deadline = time.monotonic() + OTHERS_S
    for other in run_rows.nodes_of(op, journal)[1:]:
        try:
            vendor = registry.provider(settings, other.vendor)
            # An error of a read is no verdict: the pod bills, and gets the request to end in any case.
            while other.is_live and not observation.observe_pod(other, vendor, AskedParties.FILES).verdict:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            settle(journal, settings, tell, [other.token])
            other = journal.op(other.token)
            if other.is_live:
                pods.end(vendor, other, journal, f"{op.run} has {state}")
        except SlipwayError as error:
            tell(f"{other.run}: {error}")
