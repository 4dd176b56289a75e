"""The limits of a rented run, new or resumed: the typed limits, the limits of the earlier run, or the default.

    plan, offers, the resumed run -> RunLimits: of each pod, and in words

A resumed run keeps the earlier limits, counted from the start of the run, unless new limits are typed. After an end at
a limit a run resumes only with a higher limit; otherwise the new pod would end at once and still bill.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.agent.job import Limits
from infra.agent.limits import leads_s, read_clocks
from infra.errors import LimitHit
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market.step_times import is_measured
from infra.records import Offer, Plan
from infra.runs import run_rows
from infra.runs.lookup import last_verdict
from infra.selection.preflight import billed, default_limit, forecast_of, is_open
from infra.settings import Settings
from infra.units import duration, in_usd, whole_usd


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """The resolved limits of a run."""

    limits: Limits
    """Limits for the pod of each node from now on."""
    spend_micro_usd: int | None
    """Spend limit of the whole run from its start in micro-USD, or None without a limit."""
    words: str = ""
    """Description of a limit that was not typed, with the reason."""


def run_limits(
    plan: Plan, offers: Sequence[Offer], before: Op | None, journal: Journal, settings: Settings
) -> RunLimits:
    """Return the limits of a plan's job on these offers. `before`: the newest pod of the resumed run.

    The default limit is based on the cheapest offer: a dearer machine works proportionally faster, or hits the limit.
    Raise LimitHit for a run that would end at once.
    """
    assert plan.job is not None
    typed, nodes = plan.job.limits, plan.request.nodes
    total = typed.spend_micro_usd and typed.spend_micro_usd * nodes
    if before is not None:
        check_used(before, typed, journal, settings)
        return _of_earlier(before, typed, total, nodes, journal, settings)
    if not is_open(typed):
        return RunLimits(limits=typed, spend_micro_usd=total)
    found = billed(plan)
    high = forecast_of(plan, offers[0], settings).micro_usd[2] if found else None
    limit = default_limit(high, found is not None and is_measured(found.steps))
    limits = replace(typed, spend_micro_usd=limit.micro_usd // nodes)
    return RunLimits(limits=limits, spend_micro_usd=limit.micro_usd, words=limit.description)


def _of_earlier(
    before: Op, typed: Limits, total: int | None, nodes: int, journal: Journal, settings: Settings
) -> RunLimits:
    """Return the limits of a resumed run: the typed limits, else the earlier limits, minus the amounts used."""
    total, spent = before.budget if total is None else total, spent_by(before, journal, settings)
    time_s = typed.time_s
    if time_s is None and before.ttl_s is not None:
        time_s = before.ttl_s - spend.age_s(before, read_clocks(), settings.clock_scale)
    left = replace(typed, time_s=time_s, spend_micro_usd=None if total is None else (total - spent) // nodes)
    if spend.is_used_up(left):
        raise LimitHit(
            f"{before.run} has used up the limit: {in_usd(spent)} are spent. To continue, give a higher limit: "
            f"{_higher(before, total, spent)}"
        )
    if not is_open(typed):
        return RunLimits(limits=left, spend_micro_usd=total)
    kept = [f"{in_usd(total)}, of which {in_usd(spent)} are spent"] if total is not None else []
    kept += [f"{duration(time_s)} more"] if time_s is not None else []
    words = f"{before.run} continues under the limit of {' and '.join(kept)}; to change the limit: --spend-limit, --ttl"
    return RunLimits(limits=left, spend_micro_usd=total, words=words)


def check_used(op: Op, given: Limits, journal: Journal, settings: Settings) -> None:
    """Raise LimitHit for a run ended by a limit if no new limit of the same kind is given."""
    now, scale = read_clocks(), settings.clock_scale
    if op.is_live or not _says_limit(op, settings):
        return
    money, time = replace(op, ttl_s=None), replace(op, cap=None)
    spent, flags = spent_by(op, journal, settings), []
    if given.spend_micro_usd is None and _is_near(money, now, scale):
        flags.append(_higher(op, op.budget, spent))
    if given.time_s is None and _is_near(time, now, scale):
        flags.append(f"--ttl {-(-round(op.ttl_s or 0) // 60)}m")
    if flags:
        raise LimitHit(
            f"{op.run} has ended at the limit, with {in_usd(spent)} spent; nothing was rented. To continue, repeat "
            f"the command with a higher limit: {' '.join(flags)}"
        )


def _says_limit(op: Op, settings: Settings) -> bool:
    """Return whether the run ended at a limit: by verdict, by its row, or by the vendor without a request."""
    state = last_verdict(op, settings).get("state") or op.outcome
    return state == "limit" or not state and op.del_requested_at is None


def _is_near(op: Op, now: spend.Now, scale: float) -> bool:
    """Return whether the remaining limit was so small that the guard was about to end the pod, or had ended the pod."""
    limit_s, left_s = spend.limit_s(op), spend.left_s(op, now, scale)
    return limit_s is not None and left_s is not None and left_s <= leads_s(limit_s)[0]


def _higher(op: Op, total: int | None, spent: int) -> str:
    """Return a `--spend-limit` flag with twice the used limit."""
    return f"--spend-limit {whole_usd(2 * max(total or 0, spent))}"


def spent_by(op: Op, journal: Journal, settings: Settings) -> int:
    """Return the actual and reserved cost of all pods of the run of this row, in micro-USD."""
    rows = run_rows.rows_of(run_rows.run_of(op), run_rows.size_of(op), journal)
    return sum(spend.reserved(row, read_clocks(), settings.clock_scale) for row in rows)
