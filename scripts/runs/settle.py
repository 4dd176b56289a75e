"""Rows of the journal and their upkeep: the one that is meant, what it leads to, what has ended."""

import contextlib
import time
from collections.abc import Collection
from typing import Any

from infra.agent.process import myself
from infra.agent.state import NODE_LOST
from infra.errors import LimitHit, SlipwayError, UsageError, in_words
from infra.ledger.journal import Journal, Op
from infra.ledger.life_cycle import ASKED, LOST, READY, TERMINATING
from infra.ledger.reconcile import Action, Claim, Delete, Move, reconcile
from infra.names import match
from infra.providers import Provider, registry
from infra.runs import mirror, pods
from infra.runs.keeper import lease_name
from infra.runs.notify import tell_end
from infra.settings import VENDORS, Settings
from infra.transport.protocol import Lost, TimedOut, Transport, Unreachable
from scripts.cli import context, render
from scripts.cli.session import cost_of
from serve.controller_process import is_kept
from store import Store, StoreError

OTHERS_S = 20.0
ALARM_S = 900.0  # on the vendor's clock: whoever is asked to delete a pod has done it by then


def way(settings: Settings, op: Op) -> Transport:
    """To the pod of a row."""
    return registry.provider(settings, op.vendor).reach(pods.pod_of(op))


def open_journal(settings: Settings) -> Journal:
    journal = Journal.open(settings.state_file)
    if journal.is_replacement:
        render.say(
            f"the journal {journal.path} was lost and begins anew: runs before now are only in {settings.pods}; "
            "pods of ours that a vendor lists are found again and kept"
        )
    return journal


def settle(journal: Journal, settings: Settings, only: Collection[str] | None = None) -> None:
    """Look after what nobody follows any more: what it made is brought home, then rows whose work has ended are ended.

    `only`: tokens; all live rows without. A pod that cannot be asked stays as it is, and is told.
    """
    sweep(journal, settings)
    for op in journal.ops(live=True):
        if only is None or op.token in only:
            if op.service and is_kept(op.service, journal):
                continue  # its controller looks after it
            try:
                vendor = registry.provider(settings, op.vendor)
                if vendor.is_rented and op.slot >= 0 and is_kept_by_another(op, journal):
                    continue  # its keeper looks after it
                transport = vendor.reach(pods.pod_of(op)) if op.address or not vendor.is_rented else None
                verdict, silence = dict[str, Any](), None
                try:
                    verdict = pods.verdict_of(op, transport) if transport and op.slot >= 0 else {}
                except (Lost, TimedOut, Unreachable) as error:
                    if not vendor.is_rented:
                        raise
                    transport, silence = None, error  # its vendor may say more, and its limits hold all the same
                if verdict.get("state") == NODE_LOST and is_kept_by_another(op, journal):
                    continue  # its keeper begins it anew
                if verdict:
                    bring_home(op, vendor, settings)
                ended = pods.settle(vendor, op, journal, transport)
                if ended.is_live and silence:
                    raise silence
                if vendor.is_rented and not (ended.is_live or verdict):  # perhaps by itself
                    verdict = keep_last_words(ended, settings)
                if not ended.is_live and op.slot == 0:
                    tell_end(ended, verdict.get("state") or ended_how(ended), journal, settings, render.tell)
            except Exception as error:  # the others are looked after all the same
                render.say(render.clean(f"{op.run}: {in_words(error)}"))


def ended_how(op: Op) -> str:
    """In a word that people are told, of a pod that left no verdict."""
    return "stopped" if op.outcome == ASKED else op.outcome or "lost"


def is_kept_by_another(op: Op, journal: Journal) -> bool:
    holder = journal.holder(lease_name(pods.run_of(op)))
    return holder is not None and holder != myself()


def sweep(journal: Journal, settings: Settings) -> None:
    """Compare the journal with what each vendor lists: what is ours is adopted or ended, and that is told."""
    billing = {op.vendor for op in journal.ops(live=True)}
    for name, key in VENDORS.items():
        if name in billing or getattr(settings, key):
            try:
                done = reconcile(registry.provider(settings, name), journal)
            except Exception as error:  # the other vendors are asked all the same
                render.say(render.clean(f"{name}: {in_words(error)}"))
                continue
            for action in done.actions:
                render.say(f"{name}: {told(action)}")
                if isinstance(action, Move) and action.event == "gone":
                    keep_last_words(journal.op(action.token), settings)
                if isinstance(action, Claim) and not action.is_kept:
                    tell_end(journal.op(action.pod.token), "orphan", journal, settings, render.tell)
            for problem in done.problems:
                render.say(render.clean(problem))


def keep_last_words(op: Op, settings: Settings) -> dict[str, Any]:
    """The verdict of a pod that is gone, perhaps by itself; {} when there is none, or none can be read just now."""
    try:
        return mirror.last_words(op, settings.homes / op.run)
    except StoreError as error:
        render.say(f"{op.run}: {error}")
        return {}


def tell_what_is_left() -> None:
    """Of a command that was cut short: which pods may cost money and are looked after by nobody, and how they end."""
    with contextlib.suppress(SlipwayError, OSError):  # what cut it short may have closed the terminal as well
        settings, me = context.settings(), myself()
        with Journal.open(settings.state_file) as journal:
            for op in journal.ops(live=True):
                renter = journal.holder(pods.lease(op.token))
                is_at_work = op.state in (READY, LOST)
                if op.vendor not in VENDORS or (renter != me if is_at_work else renter not in (None, me)):
                    continue
                how = "is at work" if is_at_work else f"is left as it is ({op.state})"
                after = f"inv keep {op.run}, or " if is_at_work else ""
                may = "" if op.remote_id or not op.sent_at else "whether it is there is not known: "
                render.say(
                    f"{op.run} {how}: {may}{cost_of(op, settings.clock_scale)}; {after}end it: inv down {op.run}"
                )


def raise_alarm() -> None:
    """Raises LimitHit when a pod was asked to end a quarter of an hour ago and its vendor still has it."""
    late: list[Op] = []
    with contextlib.suppress(SlipwayError, OSError):  # whoever cannot read the journal has said so
        settings = context.settings()
        if settings.state_file.exists():
            with Journal.open(settings.state_file) as journal:
                late = [op for op in journal.ops(live=True) if is_overdue(op, time.time(), settings.clock_scale)]
    if late:
        asked = [
            f"{op.run} ({op.vendor}, {render.usd(op.rate)} USD/h, since {render.iso(op.del_requested_at)})"
            for op in late
        ]
        raise LimitHit(
            f"ALARM: asked to end more than 15 minutes ago and not proven gone: {', '.join(asked)}; what exists bills. "
            f"Run: inv down {late[0].run}; when that does not help, end it on the vendor's own page"
        )


def is_overdue(op: Op, now: float, scale: float) -> bool:
    """Whether a rented pod should have been gone for long."""
    asked_at = op.del_requested_at
    is_ending = op.state == TERMINATING and op.vendor in VENDORS and asked_at is not None
    return is_ending and (now - (asked_at or 0)) * scale > ALARM_S


def told(action: Action) -> str:
    if isinstance(action, Claim):
        if action.is_kept:
            return f"{action.pod.pod_id} is from before the journal was lost: it is kept, and bills; see ./inv status"
        return f"{action.pod.pod_id} bears our mark and is in no journal row: ending it"
    if isinstance(action, Delete):
        return f"{action.pod_id} was asked to end"
    return f"{action.token}: {action.event} {action.facts.get('reason', '')}".rstrip()


def bring_home(op: Op, vendor: Provider, settings: Settings) -> list[str]:
    """Logs, last words and artifacts of a pod; the names of the artifacts. Raises SlipwayError, StoreError."""
    transport, folder = vendor.reach(pods.pod_of(op)), settings.homes / op.run
    mirror.bring_logs(op, transport, folder)
    mirror.bring_words(op, transport, folder)
    if not vendor.pod_store or op.slot > 0:  # what other nodes make, they make for themselves
        return []
    return mirror.bring_artifacts(op, vendor.pod_store, transport, Store(op.store))


def last_verdict(op: Op, settings: Settings) -> dict[str, Any]:
    """How the work of a pod ended, {} while it has not; of a rented one that is gone, as it was brought home."""
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_rented and not op.is_live:
        verdict = mirror.words_at_home(op, settings.homes / op.run).get("verdict", {})
        return verdict if verdict.get("token") == op.token else {}
    return pods.verdict_of(op, vendor.reach(pods.pod_of(op)))


def find_run(journal: Journal, run: str = "") -> Op:
    """The newest row of a run, by a prefix of its name; the last run by default. Raises UsageError.

    Other nodes of a run and replicas of a service have rows of their own, found by their whole names.
    """
    if run in journal.runs():
        return journal.ops(run=run)[-1]
    runs = names_of_runs(journal)
    if not runs:
        raise UsageError("there are no runs yet; begin with: ./inv launch --phase sft")
    return journal.ops(run=match(run, runs) if run else runs[-1])[-1]


def names_of_runs(journal: Journal) -> list[str]:
    """Of what was launched, the last one at the end: neither its other nodes nor replicas of a service."""
    others = {op.run for op in journal.ops() if op.service or pods.rank_of(op) > 0}
    return [name for name in journal.runs() if name not in others]


def end_others(op: Op, journal: Journal, settings: Settings, state: str) -> None:
    """The other nodes of a run that has its verdict: they end by themselves within seconds, or are ended."""
    deadline = time.monotonic() + OTHERS_S
    for other in pods.nodes_of(op, journal)[1:]:
        try:
            while other.is_live and not pods.verdict_of(other, way(settings, other)) and time.monotonic() < deadline:
                time.sleep(0.2)
            settle(journal, settings, [other.token])
            other = journal.op(other.token)
            if other.is_live:
                pods.end(registry.provider(settings, other.vendor), other, journal, f"{op.run} has {state}")
        except SlipwayError as error:
            render.say(f"{other.run}: {error}")
