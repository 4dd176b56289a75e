"""Look-up of journal rows by name, and of the pod and verdict of a row. Read-only."""

from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.ledger import wait_queue
from infra.ledger.budgets import is_recent
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import CUT_OFF, Op
from infra.names import match
from infra.runs import observation, run_rows
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.selection import registry
from infra.settings import LOCAL, VENDORS, Settings
from infra.transport.protocol import Transport


def transport_to(settings: Settings, op: Op) -> Transport:
    """Return the transport to the pod of a row. Raises UsageError when the pod is gone."""
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_ephemeral and not op.is_live:
        raise UsageError(
            f"{op.run} has ended, and the machine is gone; to see the local copies of the logs: inv logs {op.run}"
        )
    return vendor.reach(observation.pod_of(op))


def find_run(journal: Journal, run: str = "") -> Op:
    """Return the newest row of the run with this name or name prefix, by default of the last run. Raises UsageError.

    The trial `sweep.trial` also matches `sweep/trial`, the form shown in tables. Other nodes of a run and replicas of a
    service have their own rows and match only by their full names.
    """
    run = run.replace("/", ".", 1)
    if run in journal.runs():
        return journal.ops(run=run)[-1]
    if turn := next((one for one in wait_queue.waiting(journal) if one.run == run), None):
        raise UsageError(
            f"{run} {wait_queue.why_waiting(journal, turn)}; no work has started. To end the run: inv down {run}"
        )
    runs = names_of_runs(journal)
    if not runs:
        raise UsageError("no runs exist yet; start with: ./inv launch --phase sft")
    return journal.ops(run=match(run, runs) if run else runs[-1])[-1]


def names_of_runs(journal: Journal) -> list[str]:
    """Return the names of launched runs, the last run at the end, without other nodes of a run and without replicas."""
    others = {op.run for op in journal.ops() if op.service or op.rank > 0}
    return [name for name in journal.runs() if name not in others]


def last_verdict(op: Op, settings: Settings) -> dict[str, Any]:
    """Return the verdict of a pod's work, or {} without a verdict.

    For an ended row of a remote machine, read the local copy and do not contact the machine.
    """
    if not op.is_live and op.vendor != LOCAL:
        verdict = reports.read_local(op, RunHome.for_run(op.run, settings.homes)).get("verdict", {})
        return verdict if verdict.get("token") == op.token else {}
    return observation.verdict_of(op, registry.provider(settings, op.vendor).reach(observation.pod_of(op)))


def has_machine(op: Op, settings: Settings) -> bool:
    """Return True if the machine of a row is still configured; check only the vendor for replaceable machines."""
    try:
        vendor = registry.provider(settings, op.vendor)
        if not vendor.is_ephemeral:
            vendor.reach(observation.pod_of(op))
    except SlipwayError:
        return False
    return True


def scale_of(op: Op, settings: Settings) -> float:
    """Return the speed, relative to the local clock, of the clock by which the pod is billed."""
    return settings.clock_scale if op.vendor in VENDORS else 1.0


def between_pods(journal: Journal) -> list[Op]:
    """Return the last pods of runs that a keeper is moving to new pods, or was moving when the keeper died."""
    kept, newest = (
        journal.leases.held_names() | journal.leases.abandoned_names(),
        {op.run: op for op in journal.ops() if op.is_head},
    )
    found = [op for op in newest.values() if keeper_lease(op.run) in kept and not (op.is_live or run_rows.is_over(op))]
    return [op for op in found if not was_restart_cut_off(op, journal)]


def was_restart_cut_off(op: Op, journal: Journal) -> bool:
    """Return True if a launch of an ended run was interrupted before the hand-over: the run stays ended."""
    before = journal.ops(run=op.run)[:-1] if op.reason.startswith(CUT_OFF) else []
    return bool(before) and run_rows.is_over(before[-1])


def waits(op: Op, journal: Journal) -> bool:
    """Return True if the run of this ended pod will continue on a new pod without a user action."""
    return op.token in [one.token for one in between_pods(journal)] and is_recent(journal, op.run)
