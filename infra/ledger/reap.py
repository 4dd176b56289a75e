"""The reaper of an account: ends orphans, pods beyond a limit, and pods without a handover.

Commands run the reaper as the third enforcement of a limit, after the pod's guard and the vendor's timer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.agent.limits import read_clocks
from infra.errors import describe
from infra.journal_file import Fenced
from infra.ledger import audit, reconcile, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import BOOTING, CUT_OFF, TERMINATING, Op
from infra.ledger.reconcile import AccountSnapshot, Action, Clock
from infra.providers import Market, Provider, market

PATIENCE_S = 180.0  # seconds by the vendor's clock, for the vendor to release a machine
LEAST_PATIENCE_S = 30.0
POLL_S = 5.0  # seconds by the vendor's clock, between two looks
LEAST_POLL_S = 0.2


@dataclass(frozen=True)
class ReapResult:
    """The result of a reap of an account: the actions taken, and the remaining machines."""

    actions: tuple[Action, ...]
    due: tuple[tuple[Op, str], ...]  # rows with a requested end, and the reason
    findings: tuple[audit.Finding, ...]
    problems: tuple[str, ...]  # problems of the last pass


def due(row: Op, busy: frozenset[str], now: spend.Now, clock_scale: float = 1.0) -> tuple[str, str]:
    """Return why the pod must end now, and the resulting state of the run; ("", "") while the pod may live.

    The vendor's clock runs `clock_scale` times as fast as `now`.
    """
    if not row.is_live or row.state == TERMINATING or row.remote_id is None:
        return "", ""
    if row.state == BOOTING and row.token not in busy:
        return CUT_OFF, ""
    why = spend.due(row, now, clock_scale)
    return why, "limit" if why else ""


def inspect(provider: Provider, journal: Journal) -> tuple[list[audit.Finding], AccountSnapshot]:
    """Return the findings and the look at an account: machines, or jobs on clusters. Change nothing."""
    seen = reconcile.take_snapshot(provider, journal)
    prefix, rented = reconcile.prefix(journal), market(provider)
    now = rented.now() if rented else time.time()
    return audit.findings(seen, provider=provider.name, prefix=prefix, now=now), seen


def reap(
    market: Market,
    journal: Journal,
    *,
    orphans_only: bool = False,
    clock: Clock = read_clocks,
    sleep: Callable[[float], None] = time.sleep,
) -> ReapResult:
    """Reconcile, end due pods, and wait until the vendor releases the machines.

    `findings` of the result contains the machines still held by the vendor. `orphans_only`: leave pods with a live
    row alone, even beyond their limits.
    """

    def is_due(row: Op) -> bool:
        """Return whether the end of a row was requested and can be proven at once."""
        return row.state == TERMINATING and row.remote_id is not None

    deadline = clock().boot_s + max(LEAST_PATIENCE_S, PATIENCE_S / market.clock_scale)
    done: list[Action] = []
    asked: list[tuple[Op, str]] = []
    while True:
        problems: list[str] = []
        try:
            swept = reconcile.reconcile_in_turn(market, journal, clock)
            done += [one for one in swept.actions if one not in done]
            problems += swept.problems
        except LeaseHeld as error:
            problems.append(f"{market.name}: {error}")
        found, seen = inspect(market, journal)
        now = clock()
        new = [] if orphans_only else _end_due(seen, journal, now, market.clock_scale, problems)
        asked += new
        # The reaper cannot end a pod without an id, so waiting does not help.
        is_left = any(one.is_due and one.pod_id for one in found)
        is_over = not new and not any(map(is_due, seen.rows.values())) and not is_left
        if is_over or now.boot_s >= deadline:
            problems += [one for one in seen.problems if one not in problems]
            return ReapResult(tuple(done), tuple(asked), tuple(found), tuple(problems))
        sleep(max(LEAST_POLL_S, POLL_S / market.clock_scale))


def _end_due(
    seen: AccountSnapshot, journal: Journal, now: spend.Now, clock_scale: float, problems: list[str]
) -> list[tuple[Op, str]]:
    ended = []
    for row in seen.rows.values():
        try:
            reason, outcome = due(row, seen.busy, now, clock_scale)
            if reason:
                ended.append((journal.advance(row, "end", reason=reason, outcome=outcome), reason))
        except Fenced:
            continue  # the row moved meanwhile: the next look shows the new state
        except Exception as error:  # an error with a row must not keep the other rows alive
            problems.append(f"{row.run}: {describe(error)}")
    return ended
