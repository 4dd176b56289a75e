"""The look-up of the journal's rows by their names, and of what they lead to: a pod, a verdict. Nothing is changed."""

from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.ledger import turns
from infra.ledger.budgets import is_recent
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.names import match
from infra.runs import run_rows, sight
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.selection import registry
from infra.settings import LOCAL, VENDORS, Settings
from infra.transport.protocol import Transport


def way(settings: Settings, op: Op) -> Transport:
    """Return the transport to the pod of a row. Raises UsageError when the pod is gone."""
    vendor = registry.provider(settings, op.vendor)
    if vendor.fleeting and not op.is_live:
        raise UsageError(f"{op.run} has ended, and its machine is gone; what was brought here: inv logs {op.run}")
    return vendor.reach(sight.pod_of(op))


def find_run(journal: Journal, run: str = "") -> Op:
    """Return the newest row of a run, by a prefix of its name; the last run by default. Raises UsageError.

    The trial `sweep.trial` is found as `sweep/trial`, too, as tables show it.
    Other nodes of a run and replicas of a service have rows of their own, found by their whole names.
    """
    run = run.replace("/", ".", 1)
    if run in journal.runs():
        return journal.ops(run=run)[-1]
    if turn := next((one for one in turns.waiting(journal) if one.run == run), None):
        raise UsageError(
            f"{run} {turns.why_waiting(journal, turn)}; nothing of it has begun; to end it: inv down {run}"
        )
    runs = names_of_runs(journal)
    if not runs:
        raise UsageError("there are no runs yet; begin with: ./inv launch --phase sft")
    return journal.ops(run=match(run, runs) if run else runs[-1])[-1]


def names_of_runs(journal: Journal) -> list[str]:
    """Return the names of launched runs, the last one at the end: neither other nodes of a run nor replicas."""
    others = {op.run for op in journal.ops() if op.service or op.rank > 0}
    return [name for name in journal.runs() if name not in others]


def last_verdict(op: Op, settings: Settings) -> dict[str, Any]:
    """Return the verdict of a pod's work, {} while there is none.

    Of a row that has ended no other machine is asked: the copy at home counts.
    """
    if not op.is_live and op.vendor != LOCAL:
        verdict = reports.at_home(op, RunHome.of(op.run, settings.homes)).get("verdict", {})
        return verdict if verdict.get("token") == op.token else {}
    return sight.verdict_of(op, registry.provider(settings, op.vendor).reach(sight.pod_of(op)))


def has_machine(op: Op, settings: Settings) -> bool:
    """Return whether the machine of a row can be named still: a rented one is replaced by another of its vendor."""
    try:
        vendor = registry.provider(settings, op.vendor)
        if not vendor.fleeting:
            vendor.reach(sight.pod_of(op))
    except SlipwayError:
        return False
    return True


def scale_of(op: Op, settings: Settings) -> float:
    """Return the speed, relative to ours, of the clock by which the pod is billed."""
    return settings.clock_scale if op.vendor in VENDORS else 1.0


def between_pods(journal: Journal) -> list[Op]:
    """Return the last pods of runs that their keepers continue on other ones, or were about to when they died."""
    kept, newest = (
        journal.leases.held() | journal.leases.abandoned(),
        {op.run: op for op in journal.ops() if op.is_head},
    )
    return [op for op in newest.values() if keeper_lease(op.run) in kept and not (op.is_live or run_rows.is_over(op))]


def waits(op: Op, journal: Journal) -> bool:
    """Return whether the run of this last pod goes on by itself on another one."""
    return op.token in [one.token for one in between_pods(journal)] and is_recent(journal, op.run)
