"""State shared by the commands of a line: the journal, the line's pods, and the closing messages.

`scripts.cli.invoke_patch` prints the closing messages and finds this module by name in `sys.modules`, after a command
has imported the module.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from infra.agent.limits import read_clocks
from infra.agent.process import current_identity
from infra.errors import LimitHit, SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import LOST, READY, Op
from infra.runs import run_rows
from infra.settings import Settings, is_rented
from infra.units import per_hour
from scripts.cli import context, render

if TYPE_CHECKING:
    from flows.supervisor.over_limit import OverLimit

_used: dict[str, None] = {}  # names of pods, the most recently used last
_over: "dict[str, OverLimit]" = {}  # last known state of the pods found past their limit, by token


def open_journal(settings: Settings) -> Journal:
    """Open the journal, and first end and report all pods past their limit, for any command."""
    journal = Journal.open(settings.state_file)
    if journal.problem:
        render.tell(journal.problem)
    if journal.is_replacement:
        render.say(
            f"the journal {journal.path} is missing, so a new journal was created. Earlier runs are "
            f"recorded in {settings.pods} only; pods of this installation that a vendor still lists are "
            "added again and kept"
        )
    end_over_limit(journal, settings)
    return journal


def end_over_limit(journal: Journal, settings: Settings) -> "list[OverLimit]":
    """End pods past their limit, report each change once, and return the result of `found_over_limit`."""
    if not journal.ops(live=True):
        return found_over_limit(journal)
    from flows.supervisor import over_limit

    for one in over_limit.end_over_limit(journal, settings, render.tell):
        before = _over.get(one.op.token)
        if before is None or before.is_ended is not one.is_ended:
            render.say(render.clean(one.words))
        _over[one.op.token] = one
    return found_over_limit(journal)


def found_over_limit(journal: Journal) -> "list[OverLimit]":
    """Return the over-limit pods of this line that had to be ended, each with the current journal row."""
    found = [replace(one, op=journal.op(token)) for token, one in _over.items()]
    return [one for one in found if one.was_running]


def past_limit_words(over: "Sequence[OverLimit]") -> str:
    """Return a summary of the pods past their limit, with the command for pods that may still bill."""
    ended = [one.op.run for one in over if one.is_ended]
    left = [one.op.run for one in over if not one.is_ended]
    said = [f"past a limit, ended by this command: {', '.join(ended)}"] if ended else []
    said += (
        [f"past a limit, not proven gone, may still bill: {', '.join(left)}; run: inv down {left[0]}"] if left else []
    )
    return "; ".join(said)


def use(op: Op) -> None:
    """Make `op` the current pod, the default of later commands on the line."""
    _used.pop(op.run, None)
    _used[op.run] = None


def current() -> str:
    """Return the name of the current pod of this line, or "" without a pod."""
    return next(reversed(_used), "")


def forget(run: str) -> None:
    _used.pop(run, None)


def print_live_pods() -> None:
    """Print the live pods of this line with cost, limit and end command."""
    with contextlib.suppress(SlipwayError, OSError):  # the original error must be shown
        settings = context.settings()
        with Journal.open(settings.state_file) as journal:
            for op in journal.ops(live=True):
                if op.run in _used:
                    render.say(
                        f"{op.run} still exists: {cost_of(op, settings.clock_scale)}; end the pod: inv "
                        f"pod.down {op.run}"
                    )


def cost_of(op: Op, scale: float) -> str:
    """Return the cost and the limit of a live pod as text."""
    if not op.rate:
        return "the pod costs nothing"
    left_s = spend.left_s(op, read_clocks(), scale)
    until = "" if left_s is None else f" until the limit, in {render.duration(left_s)}"
    return f"the pod bills {per_hour(op.rate)}{until}"


def print_unsupervised_pods() -> None:
    """Print the pods left without a supervisor by an interrupted command, with cost and end command."""
    with contextlib.suppress(SlipwayError, OSError):  # the interruption may have closed the terminal as well
        settings, me = context.settings(), current_identity()
        with Journal.open(settings.state_file) as journal:
            for op in journal.ops(live=True):
                renter = journal.leases.holder(run_rows.lease(op.token))
                is_at_work = op.state in (READY, LOST)
                if not is_rented(op.vendor) or (renter != me if is_at_work else renter not in (None, me)):
                    continue
                how = "is still running" if is_at_work else f"is left in state {op.state}"
                after = f"follow the run: inv keep {op.run}; " if is_at_work else ""
                may = "" if op.remote_id or not op.sent_at else "the vendor's answer was lost, so the pod may exist: "
                render.say(
                    f"{op.run} {how}: {may}{cost_of(op, settings.clock_scale)}; {after}end the run: inv down {op.run}"
                )


def raise_if_overdue() -> None:
    """Raise LimitHit if a pod is not proven gone a quarter of an hour after the request to end."""
    late: list[Op] = []
    with contextlib.suppress(SlipwayError, OSError):  # an earlier command has already reported an unreadable journal
        settings = context.settings()
        if settings.state_file.exists():
            with Journal.open(settings.state_file) as journal:
                if journal.ops(live=True):
                    from infra.runs.keepers.due_ends import overdue

                    late = overdue(journal, settings)
    if late:
        asked = [f"{op.run} ({op.vendor}, {per_hour(op.rate)}, since {render.iso(op.del_requested_at)})" for op in late]
        raise LimitHit(
            "ALARM: the deletion of these pods was requested more than 15 minutes ago and is not proven; "
            f"they may still bill: {', '.join(asked)}. Run: inv down {late[0].run}. If the command does "
            "not help, delete the pod on the vendor's page"
        )
