"""The upkeep of the journal: what nobody follows any more is downloaded, and what has ended is ended in its row.

In: the journal, settings. Out: rows moved on, pods ended, logs and artifacts in the local mirror. `tell` gets what was
found and what could not be asked, which never keeps the rest from being looked after.
"""

import time
from collections.abc import Collection
from typing import Any

from infra.agent.state import NODE_LOST
from infra.errors import SlipwayError, in_words
from infra.journal_file import Fenced
from infra.ledger.journal import Journal
from infra.ledger.life_cycle import ASKED, LOST, READY
from infra.ledger.op import Op
from infra.ledger.reconcile import Action, Claim, Delete, Move, reconcile_in_turn
from infra.notices.tell import tell_end
from infra.providers import Provider
from infra.providers.extensions import own_providers
from infra.runs import pods, run_rows, sight
from infra.runs.keepers.due_ends import is_being_concluded, is_kept, is_kept_by_another, is_past_limit, last_look
from infra.runs.lookup import way
from infra.runs.run_home import RunHome
from infra.runs.sight import Sight
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import VENDORS, Settings, is_rented
from infra.transport.meter import Meter
from store.artifacts.artifacts import Store
from store.manifest import StoreError

OTHERS_S = 20.0


def settle(
    journal: Journal, settings: Settings, tell: Say, only: Collection[str] | None = None,
    own: Collection[str] | None = None, waits: bool = True,
) -> list[Op]:  # fmt: skip
    """Look after what nobody follows: bring home what it made, then end the rows whose work has ended; return those.

    `only`: tokens; all live rows without. A pod that cannot be asked stays as it is, and is told. `own`: the providers
    of extensions whose code may be run, beside those that have live pods; all without. `waits`: see `pods.settle`.
    """
    reconcile_accounts(journal, settings, tell, own)
    tokens = [op.token for op in journal.ops(live=True) if only is None or op.token in only]
    return settle_rows(journal, settings, tell, tokens, waits)


def settle_rows(
    journal: Journal, settings: Settings, tell: Say, tokens: Collection[str], waits: bool = True
) -> list[Op]:
    """Do the same for these rows, without asking vendors what there is besides."""
    ended = []
    for op in journal.ops(live=True):
        if op.token in tokens:
            try:
                if is_past_limit(op, settings):
                    now = end_past_limit(op, last_look(op, settings), journal, settings, tell, waits)
                elif is_kept(op, journal, settings):
                    continue
                else:
                    now = _settle(op, journal, settings, tell, waits)
                if not now.is_live:
                    ended.append(now)
            except Fenced:  # another process settles it at the same time, and tells of it
                continue
            except Exception as error:  # an error about one must not keep the others from being settled
                if waits or not isinstance(error, pods.StillBills):  # a caller that does not wait has only just asked
                    tell(f"{op.run}: {in_words(error).removeprefix(f'{op.run}: ')}")
    return ended


def end_past_limit(op: Op, seen: Sight, journal: Journal, settings: Settings, tell: Say, waits: bool) -> Op:
    """End a pod that is past its limit, whoever looks after it; return its row.

    Raises what speaking to its vendor raises, and Fenced where another process has ended it just now.
    """
    if is_being_concluded(op, seen, journal, settings):
        return op
    return _settle(op, journal, settings, tell, waits, seen)


def _settle(
    op: Op, journal: Journal, settings: Settings, tell: Say, waits: bool, seen: Sight | None = None
) -> Op:  # fmt: skip
    """Settle a row; return it as it is then. Raises what speaking to the pod and its vendor raises.

    `seen`: its pod, where that was looked at just now.
    """
    vendor = registry.provider(settings, op.vendor)
    if seen is None and not op.detached and op.state in (READY, LOST):
        seen = sight.look(op, vendor, pods.LOOK)
    verdict = dict(seen.verdict) if seen else {}
    if verdict.get("state") == NODE_LOST and is_kept_by_another(op, journal):
        return op  # the keeper starts it anew
    if verdict:
        bring_home(op, vendor, settings)
    ended = pods.settle(vendor, op, journal, seen, waits)
    if vendor.fleeting and not (ended.is_live or verdict):  # perhaps by itself
        verdict = keep_last_words(ended, settings, tell)
    if not ended.is_live and op.is_head:
        tell_end(ended, verdict.get("state") or ended_how(ended), journal, settings, tell, verdict)
    return ended


def ended_how(op: Op) -> str:
    """Return the outcome of a pod that left no verdict, in a word for people."""
    return "stopped" if op.outcome == ASKED else op.outcome or "lost"


def reconcile_accounts(
    journal: Journal, settings: Settings, tell: Say, reached: Collection[str] | None = None
) -> None:  # fmt: skip
    """Compare the journal with what each vendor lists: what is ours is adopted or ended, and that is told.

    `reached`: as `own` of `settle`.
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
        except Exception as error:  # an error at one vendor must not keep the others from being asked
            tell(f"{name}: {in_words(error)}")
            continue
        for action in done.actions:
            tell(f"{name}: {told(action)}")
            if isinstance(action, Move) and action.event == "gone":
                keep_last_words(journal.op(action.token), settings, tell)
            if isinstance(action, Claim) and not action.is_kept:
                tell_end(journal.op(action.pod.token), "orphan", journal, settings, tell)
        for problem in done.problems:
            tell(problem)


def keep_last_words(op: Op, settings: Settings, tell: Say) -> dict[str, Any]:
    """Return the verdict of a pod that is gone, perhaps by itself; {} when none can be read just now."""
    from infra.runs.sync import mirror  # each command settles, and few find anything to copy

    try:
        return mirror.last_words(op, RunHome.of(op.run, settings.homes))
    except StoreError as error:
        tell(f"{op.run}: {error}")
        return {}


def told(action: Action) -> str:
    if isinstance(action, Claim):
        if action.is_kept:
            return f"{action.pod.pod_id} is from before the journal was lost: it is kept, and bills; see ./inv status"
        return f"{action.pod.pod_id} bears our mark and is in no journal row: ending it"
    if isinstance(action, Delete):
        return f"{action.pod_id} was asked to end"
    return f"{action.token}: {action.event} {action.facts.get('reason', '')}".rstrip()


def bring_home(op: Op, vendor: Provider, settings: Settings, meter: Meter | None = None) -> list[str]:
    """Bring logs, last words and artifacts of a pod; return the names of the artifacts.

    Raises SlipwayError, StoreError.
    """
    from infra.runs.sync import mirror  # see keep_last_words

    transport, home = vendor.reach(sight.pod_of(op)), RunHome.of(op.run, settings.homes)
    mirror.bring_logs(op, transport, home)
    reports.bring(op, transport, home)
    if not vendor.pod_store or op.rank > 0:  # other nodes keep what they make for themselves
        return []
    return mirror.bring_artifacts(op, vendor.pod_store, transport, Store(op.store), home, meter)


def end_others(op: Op, journal: Journal, settings: Settings, state: str, tell: Say) -> None:
    """End the other nodes of a run that has its verdict: they end by themselves within seconds, or are ended."""
    deadline = time.monotonic() + OTHERS_S
    for other in run_rows.nodes_of(op, journal)[1:]:
        try:
            while other.is_live and not sight.verdict_of(other, way(settings, other)) and time.monotonic() < deadline:
                time.sleep(0.2)
            settle(journal, settings, tell, [other.token])
            other = journal.op(other.token)
            if other.is_live:
                pods.end(registry.provider(settings, other.vendor), other, journal, f"{op.run} has {state}")
        except SlipwayError as error:
            tell(f"{other.run}: {error}")
