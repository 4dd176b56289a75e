"""The audit of an account: the vendor's listing compared with the journal.

The input and the output are records; the audit sends no requests and makes no changes.

    reconcile.take_snapshot -> findings -> Finding.is_wrong
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infra.ledger import accounts
from infra.ledger.op import CREATING, ENDED, PLANNED, TERMINATING, UNKNOWN, Op
from infra.ledger.reconcile import AccountSnapshot
from infra.providers.pod_keys import is_token
from infra.records import Pod

CLAIMED = "claimed"  # our pod with a live row
ORPHANED = "orphaned"  # our pod without a live row
ENDING = "ending"  # our pod; the end was requested, and the vendor still lists the pod
FOREIGN = "foreign"
GHOST = "ghost"  # a live row; the vendor does not know the machine
UNCLEAR = "unclear"  # a row without a clear answer of the vendor: the machine may exist
UNKNOWN_MARK = "unknown"  # the vendor's data do not show whether the machine is ours

ENDED_BY_VENDOR = "ending"  # `Pod.state` of a machine on the way out


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding about a machine, or about a row without a machine."""

    provider: str
    kind: str
    pod_id: str = ""
    token: str = ""
    run: str = ""
    name: str = ""  # name shown by the vendor
    state: str = ""  # state shown by the vendor
    micro_usd_per_hour: int = 0
    age_s: float | None = None  # seconds by the vendor's clock; None = not reported
    note: str = ""

    @property
    def is_due(self) -> bool:
        """Return whether the machine is ours, should be gone, and still exists."""
        return self.kind in (ORPHANED, ENDING)

    @property
    def wastes_money(self) -> bool:
        """Return whether the machine costs, or may cost, unwanted money.

        True for a due machine not yet ending at the vendor, an unclear row, and a machine with an unknown mark.
        """
        return (self.is_due and self.state != ENDED_BY_VENDOR) or self.kind in (UNCLEAR, UNKNOWN_MARK)


def findings(seen: AccountSnapshot, *, provider: str, prefix: str, now: float) -> list[Finding]:
    """Return a finding for each listed machine, then for each live row without a machine, except PLANNED rows.

    `now`: UTC epoch seconds by the vendor's clock.
    """
    found = []
    taken: set[str] = set()  # tokens of rows already matched with a machine
    for pod in sorted(seen.listing.pods, key=lambda pod: (pod.created_at, pod.pod_id)):
        row = seen.rows.get(pod.token)
        kind, note = _whose(pod, row, prefix, seen, taken)
        if kind in (CLAIMED, ENDING):
            taken.add(pod.token)
        found.append(
            Finding(
                provider=provider,
                kind=kind,
                pod_id=pod.pod_id or (row and row.remote_id) or "",
                token=pod.token,
                run=row.run if row else pod.run,
                name=pod.name,
                state=pod.state,
                micro_usd_per_hour=pod.micro_usd_per_hour or (row.rate if row and pod.odd else 0),
                age_s=max(0.0, now - pod.created_at) if pod.created_at else None,
                note="; ".join(filter(None, (note, pod.odd))),
            )
        )
    missing = [row for row in seen.rows.values() if row.token not in taken and row.state not in (*ENDED, PLANNED)]
    return [*found, *_without(missing, seen, provider)]


def _whose(pod: Pod, row: Op | None, prefix: str, seen: AccountSnapshot, taken: set[str]) -> tuple[str, str]:
    """Return the kind of finding for a listed machine, and the reason."""
    if not pod.is_legible:
        return UNKNOWN_MARK, "may belong to this installation"
    if not pod.token.startswith(prefix):
        return FOREIGN, "another installation's" if is_token(pod.token) else ""
    if row is None:
        return ORPHANED, "has the mark of this installation, but no row in the journal"
    if row.state in ENDED:
        return (
            ORPHANED,
            f"the row in the journal has ended ({row.reason})" if row.reason else "the row in the journal has ended",
        )
    known = row.remote_id in {one.pod_id for one in seen.listing.pods}
    if pod.token in taken or (known and pod.pod_id != row.remote_id):
        return ORPHANED, f"a second machine of {row.run}"
    if row.state == TERMINATING:
        return ENDING, row.reason
    return CLAIMED, "not adopted yet" if row.state in (CREATING, UNKNOWN) else ""


def _without(rows: Sequence[Op], seen: AccountSnapshot, provider: str) -> Iterator[Finding]:
    """Yield findings for live rows without a listed machine; an incomplete listing yields none."""
    for row in rows if seen.listing.is_complete else ():
        if row.token in seen.other_account_tokens:
            kind, note = UNCLEAR, accounts.account_advice(row)
        elif row.is_spot and seen.listing.spot_problem:
            kind, note = UNCLEAR, "not known whether the machine exists: the API for spot machines does not answer"
        elif row.remote_id and row.remote_id not in seen.listing.denied:
            kind, note = CLAIMED, "missing from the listing, but found by id"
        elif row.remote_id:
            kind, note = GHOST, f"{provider} does not know the machine; inv reap removes the row"
        elif row.token in seen.busy:
            kind, note = CLAIMED, "being rented at this moment"
        elif row.sent_at is None:
            kind, note = GHOST, "no machine was requested; inv reap removes the row"
        else:
            kind, note = UNCLEAR, "not known yet whether the machine exists; inv reap checks again"
        yield Finding(
            provider=provider,
            kind=kind,
            pod_id=row.remote_id or "",
            token=row.token,
            run=row.run,
            micro_usd_per_hour=row.rate if kind != GHOST else 0,
            note=note,
        )
