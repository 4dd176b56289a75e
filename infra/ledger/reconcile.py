"""The reconciliation of a vendor's listing with the journal: a pure decision, then the effects.

Commands that rent or end pods reconcile first, for every vendor with keys. The listing is fetched before the rows are
read: an intent precedes the request, so every listed pod except an orphan has a row by then. Silence ends no row:
absence takes the answer of the vendor, and several answers for a pod without a known id.

    listing, then rows -> decide -> actions -> journal and vendor
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from infra.agent.limits import Clocks, read_clocks
from infra.errors import describe
from infra.journal_file import Fenced
from infra.ledger import accounts, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import BOOTING, CREATING, ENDED, LOST, PLANNED, READY, TERMINATING, UNKNOWN, Op
from infra.providers import LAG_S, PartialListing, Provider, SpotUnlisted, clock_scale, find_pod, market
from infra.records import Pod
from infra.units import per_hour

# Seconds by the vendor's clock: vendors check limits by the minute, bill started units, and know their clock best.
EARLY_S = 60.0
TURN_S = 10.0  # seconds to wait for a second process reconciling the same vendor
TURN_POLL_S = 0.1  # seconds between attempts
APART_S = 60  # seconds between listings that count as a proof of absence
# A row beyond these states no longer belongs to the renting process, even if the process still lives.
RENTING = (PLANNED, CREATING, UNKNOWN, BOOTING)
FOUND = "the journal lost the row of this pod; the pod was found in the vendor's listing"
OVERPRICED = 1.05  # multiple of the agreed rate above which the pod is ended
Clock = Callable[[], Clocks]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The listing of a vendor. `began`: the clocks before the request for the first page."""

    began: Clocks
    pods: tuple[Pod, ...] = ()
    is_complete: bool = True
    spot_problem: str = ""  # why spot pods may be missing; "" = none are missing
    denied: frozenset[str] = frozenset()  # ids unknown to the vendor, each checked by a request


@dataclass(frozen=True)
class RowEvent:
    """An event of a row; "note" writes facts without changing the state."""

    token: str
    event: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AdoptedRow:
    """A new row for a pod with our mark and without a row, so that the journal records the pod's end."""

    pod: Pod
    is_kept: bool = False  # the row may be lost with an earlier journal: do not end the pod


@dataclass(frozen=True)
class Delete:
    token: str
    pod_id: str


Action = RowEvent | AdoptedRow | Delete


def decide(
    rows: Iterable[Op],
    listing: Listing,
    *,
    prefix: str,
    settle_s: float,
    busy: Collection[str] = (),
    replaced_ago_s: float | None = None,
    at_limit: Mapping[str, str] = MappingProxyType({}),
) -> list[Action]:
    """Return the actions to take, in order; the actions of a token are consecutive.

    `rows`: all rows of the vendor, also ended rows. `prefix`: prefix of our tokens; other pods are ignored. `busy`:
    tokens that a living process is renting. `replaced_ago_s`: minimum seconds since the journal replaced a lost
    journal, which had the rows of all earlier pods; a process with the lost journal open may have rented for a while
    afterwards. `at_limit`: by token, why a pod was due to end by now; if the vendor no longer has the pod, the vendor
    enforced the limit.
    """
    found: dict[str, list[Pod]] = {}
    for pod in sorted(listing.pods, key=lambda pod: (pod.created_at, pod.pod_id)):
        if pod.token.startswith(prefix):
            found.setdefault(pod.token, []).append(pod)
    rows = tuple(rows)
    # An empty listing of an account with earlier pods may be a faulty listing.
    needed = 3 if not listing.pods and any(row.is_live and row.last_seen_at for row in rows) else 2
    actions: list[Action] = []
    for row in rows:
        here = found.pop(row.token, [])
        if row.token not in busy or row.state not in RENTING:
            is_whole = listing.is_complete and not (row.is_spot and listing.spot_problem)
            seen = replace(listing, is_complete=is_whole)
            actions += _of_row(row, here, seen, settle_s, needed, at_limit.get(row.token, ""))
    if listing.is_complete:
        for pods in found.values():
            age_s = listing.began.wall_s - pods[0].created_at
            if replaced_ago_s is not None and age_s >= replaced_ago_s - settle_s:
                actions.append(AdoptedRow(pods[0], is_kept=True))
            else:
                actions += [AdoptedRow(pods[0]), *(Delete(pod.token, pod.pod_id) for pod in pods)]
    return actions


def _of_row(row: Op, here: list[Pod], listing: Listing, settle_s: float, needed: int, limit: str) -> list[Action]:
    ours = next((pod for pod in here if pod.pod_id == row.remote_id), here[0] if here else None)
    surplus = [pod for pod in here if pod is not ours and listing.is_complete]
    extras: list[Action] = [Delete(row.token, pod.pod_id) for pod in surplus]
    if row.state in ENDED:
        if ours is None or not listing.is_complete:
            return []
        pod_id = ours.pod_id or row.remote_id
        again = RowEvent(
            row.token, "resurfaced", {"remote_id": pod_id, "reason": "the machine appeared after the recorded end"}
        )
        return [again, Delete(row.token, pod_id or ""), *extras]
    if row.state == PLANNED:
        return [RowEvent(row.token, "unsent", {"reason": "its launch was cut off before anything was sent"})]
    if row.state in (CREATING, UNKNOWN):
        doubt = [RowEvent(row.token, "unclear", {"reason": "its launch was cut off"})] if row.state == CREATING else []
        if ours is None:
            return [*doubt, *_absence(row, listing, settle_s, needed, "absent")]
        facts = {"remote_id": ours.pod_id or None, "address": ours.address, "absent_n": 0, "first_absent_at": None}
        rate = ours.rate(row.rate)
        adopted = [*doubt, RowEvent(row.token, "found", {**facts, "rate": rate})]
        if ours.micro_usd_per_hour > row.rate * OVERPRICED:
            reason = f"the machine costs {per_hour(ours.micro_usd_per_hour)}; the agreed price was {per_hour(row.rate)}"
            return [*adopted, RowEvent(row.token, "end", {"reason": reason}), Delete(row.token, ours.pod_id), *extras]
        return [*adopted, *extras]
    is_old = row.last_seen_at is not None or row.boot_clock_age_s(listing.began) > min(LAG_S, settle_s)
    is_denied = listing.is_complete and row.remote_id in listing.denied and is_old
    # The vendor cannot end a pod under an unknown id. The row may be damaged: use the listed id.
    if ours is not None:
        known = (ours.pod_id if is_denied else row.remote_id or ours.pod_id) or row.remote_id
        facts = {"last_seen_at": int(listing.began.wall_s), "remote_id": known}
        is_news = row.last_seen_at is None or row.remote_id != known
        shown = [RowEvent(row.token, "note", facts)] if is_news else []
        ending = [Delete(row.token, ours.pod_id or known or "")] if row.state == TERMINATING else []
        return [*shown, *ending, *extras]
    if row.remote_id is None and row.sent_at is None:
        return [RowEvent(row.token, "gone")]  # the end was requested before anything was sent
    if row.remote_id is None:
        return _absence(row, listing, settle_s, needed, "gone")
    assert row.state in (BOOTING, READY, LOST, TERMINATING), row.state
    if is_denied:
        ended = f"{limit}; {row.vendor} ended the pod" if limit else f"{row.vendor} ended the pod"
        why = {} if row.state == TERMINATING else {"reason": ended, "outcome": "limit" if limit else ""}
        return [RowEvent(row.token, "gone", why)]
    return [Delete(row.token, row.remote_id)] if row.state == TERMINATING else []


def _absence(row: Op, listing: Listing, settle_s: float, needed: int, event: str) -> list[Action]:
    """Return the action for a listing without the pod: count the listing, or apply `event` after `needed` listings.

    Only complete and legible listings count, `APART_S` apart and later than `settle_s` after the request. The first
    absence is measured from the request by the boot clock; a reboot restarts the count.
    """
    since_s = row.boot_clock_age_s(listing.began)
    may_be_there = not all(pod.is_legible for pod in listing.pods)
    if not listing.is_complete or may_be_there or since_s <= settle_s:
        return []
    at = int(since_s) + (row.intent_at if row.sent_at is None else row.sent_at)
    if row.first_absent_at is None or at < row.first_absent_at:
        return [RowEvent(row.token, "note", {"absent_n": 1, "first_absent_at": at})]
    if at < row.first_absent_at + APART_S * row.absent_n:
        return []
    if row.absent_n + 1 >= needed:
        return [RowEvent(row.token, event)]
    return [RowEvent(row.token, "note", {"absent_n": row.absent_n + 1})]


@dataclass(frozen=True)
class AccountSnapshot:
    """The state of an account: the vendor's listing, then the rows of the journal."""

    listing: Listing
    rows: Mapping[str, Op]  # all rows of the vendor, by token
    busy: frozenset[str]  # tokens that a living process is renting
    problems: tuple[str, ...]
    # Tokens of pods of a different or unknown account: absence from the listing proves no end.
    other_account_tokens: frozenset[str] = frozenset()


def take_snapshot(provider: Provider, journal: Journal, clock: Clock = read_clocks) -> AccountSnapshot:
    """Look at an account without changing anything.

    If the vendor does not answer, the listing is incomplete and `problems` has the error.
    """
    began, problems = clock(), []
    try:
        listing = Listing(began=began, pods=tuple(provider.list()))
    except SpotUnlisted as error:
        listing = Listing(began=began, pods=error.pods, spot_problem=describe(error))
    except PartialListing as error:
        problems.append(describe(error))
        listing = Listing(began=began, pods=error.pods, is_complete=False)
    except Exception as error:
        problems.append(f"{provider.name}: {describe(error)}")
        listing = Listing(began=began, is_complete=False)
    rows = {op.token: op for op in journal.ops() if op.vendor == provider.name}
    listing = replace(listing, pods=tuple(_known_by_id(listing.pods, rows.values())))
    # Leases are read after rows: a renter takes the lease before writing the row, so no row is read without a lease.
    busy = frozenset(name.removeprefix("rent:") for name in journal.leases.held_names())
    elsewhere = _elsewhere(provider, rows.values(), listing, clock(), problems)
    here = [row for token, row in rows.items() if token not in elsewhere]
    denied = _denied(provider, here, listing, problems) if listing.is_complete else frozenset()
    shown = {pod.token for pod in listing.pods}
    open_spot = [row for row in here if row.is_live and row.is_spot and row.token not in shown]
    problems += [f"{row.run}: the row stays open: {listing.spot_problem}" for row in open_spot if listing.spot_problem]
    return AccountSnapshot(replace(listing, denied=denied), rows, busy, tuple(problems), elsewhere)


def _elsewhere(
    provider: Provider, rows: Iterable[Op], listing: Listing, now: Clocks, problems: list[str]
) -> frozenset[str]:
    """Return the tokens of live, unlisted rows that a different account rented, or may have rented."""
    shown = {pod.token for pod in listing.pods}
    ours = {row.account_fp for row in rows if row.token in shown}  # a new key may belong to the same account
    found = set()
    for row in rows if listing.is_complete else ():
        was_sent = row.is_live and (row.sent_at is not None or row.remote_id is not None)
        if was_sent and row.token not in shown and row.account_fp not in ours:
            try:
                if not accounts.is_another(provider, row, now):
                    continue
                problems.append(f"{row.run}: {accounts.account_advice(row)}")
            except Exception as error:  # unknown account: the listing proves no absence of the row
                problems.append(f"{row.run}: {describe(error)}")
            found.add(row.token)
    return frozenset(found)


def _known_by_id(pods: Iterable[Pod], rows: Iterable[Op]) -> Iterator[Pod]:
    """Yield the pods; a pod with an unreadable mark gets the token of the row with the same id."""
    tokens = {row.remote_id: row.token for row in rows if row.remote_id}
    for pod in pods:
        token = "" if pod.is_legible else tokens.get(pod.pod_id, "")
        yield replace(pod, token=token, is_legible=True) if token else pod


def prefix(journal: Journal) -> str:
    """Return the prefix of the tokens of this installation."""
    return f"sw1-{journal.installation}-"


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconciliation, for display."""

    actions: tuple[Action, ...]
    problems: tuple[str, ...]  # an incomplete listing, a pod that could not be ended


def reconcile(provider: Provider, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Reconcile a vendor once. Raise LeaseHeld while a second process reconciles the vendor; JournalError."""
    lease = journal.leases.acquire(f"reconcile:{provider.name}")
    try:
        seen = take_snapshot(provider, journal, clock)
        rows, problems = dict(seen.rows), [*seen.problems]
        settle_s, ours = provider.settle_s, prefix(journal)
        now = clock()
        listing, at_limit = _by_our_clock(seen.listing, provider, now), _at_limit(rows.values(), provider, now)
        here = [row for token, row in rows.items() if token not in seen.other_account_tokens]
        actions = decide(
            here,
            listing,
            prefix=ours,
            settle_s=settle_s,
            busy=seen.busy,
            replaced_ago_s=journal.replaced_ago_s(now),
            at_limit=at_limit,
        )
        # Tokens of rows changed and now handled by a second process, or with a failed record: skip their actions.
        lost: set[str] = set()
        done = [action for action in actions if _carry_out(action, provider, journal, rows, lost, problems)]
        return ReconcileResult(tuple(done), tuple(problems))
    finally:
        journal.leases.release(lease)


def reconcile_in_turn(provider: Provider, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Reconcile a vendor once, after waiting for a second process reconciling the same vendor.

    Raise LeaseHeld after `TURN_S` seconds: the second process then hangs or was suspended. Raise JournalError.
    """
    deadline = time.monotonic() + TURN_S
    while True:
        try:
            return reconcile(provider, journal, clock)
        except LeaseHeld:
            if time.monotonic() < deadline:
                time.sleep(TURN_POLL_S)
                continue
            holder = journal.leases.holder(f"reconcile:{provider.name}")
            by = f"process {holder.pid}" if holder else "another process"
            raise LeaseHeld(
                f"not checked: {by}, an inv command, has been reading this account for {TURN_S:g} s. If that "
                "command hangs or is suspended, end the command, then check again: inv status"
            ) from None


def _by_our_clock(listing: Listing, provider: Provider, now: Clocks) -> Listing:
    """Return the listing with times by our clock, which may differ from the vendor's clock and may be wrong."""
    rented = market(provider)
    if rented is None:
        return listing

    def ours(pod: Pod) -> Pod:
        if not pod.created_at:
            return pod
        created_at = int(now.wall_s - max(0.0, rented.now() - pod.created_at) / rented.clock_scale)
        ends_at = pod.ends_at and created_at + pod.ends_at - pod.created_at
        return replace(pod, created_at=created_at, ends_at=ends_at)

    return replace(listing, pods=tuple(map(ours, listing.pods)))


def _at_limit(rows: Iterable[Op], provider: Provider, now: Clocks) -> dict[str, str]:
    """Return by token why live rows are due to end by now, or within `EARLY_S`, by our arithmetic."""
    scale = clock_scale(provider)
    soon = replace(now, boot_s=now.boot_s + EARLY_S / scale, wall_s=now.wall_s + EARLY_S / scale)
    return {row.token: why for row in rows if row.is_live and (why := spend.due(row, soon, scale))}


def _denied(provider: Provider, rows: Iterable[Op], listing: Listing, problems: list[str]) -> frozenset[str]:
    shown, denied = {pod.pod_id for pod in listing.pods}, set[str]()
    for row in rows:
        is_unheard = row.is_spot and listing.spot_problem
        if row.is_live and row.remote_id and row.remote_id not in shown and not is_unheard:
            try:
                if find_pod(provider, row.remote_id, row.is_spot) is None:
                    denied.add(row.remote_id)
            except Exception as error:  # error with a pod: the state is unknown, and the other pods continue
                problems.append(f"{row.run}: {describe(error)}")
    return frozenset(denied)


def _with_limits(pod: Pod, provider: Provider) -> Pod:
    """Return a listed pod with the limits that the vendor shows for the id, since a listing may omit limits.

    Raise SlipwayError when the vendor does not answer; the next look then adopts the pod.
    """
    rented = market(provider)
    found = provider.find(pod.pod_id) if rented and rented.can.tells_limits and pod.pod_id else None
    if found is None:
        return pod
    # The listing's times are already by our clock; the times of the single row are by the vendor's clock.
    ends_at = pod.created_at + found.ends_at - found.created_at if found.ends_at and found.created_at else None
    return replace(pod, ends_at=ends_at, spend_limit_micro_usd=found.spend_limit_micro_usd)


def _carry_out(
    action: Action, provider: Provider, journal: Journal, rows: dict[str, Op], lost: set[str], problems: list[str]
) -> bool:
    token = action.pod.token if isinstance(action, AdoptedRow) else action.token
    if token in lost:
        return False
    try:
        if isinstance(action, Delete):
            journal.leases.check_held()
            provider.delete(action.pod_id)
        elif isinstance(action, AdoptedRow):
            reason, state = (
                (FOUND, LOST)
                if action.is_kept
                else ("has the mark of this installation, but no row in the journal", TERMINATING)
            )
            pod = _with_limits(action.pod, provider) if action.is_kept else action.pod
            rows[token] = journal.claim(pod, reason, state)
        elif action.event == "note":
            rows[token] = journal.note(rows[token], **action.facts)
        else:
            rows[token] = journal.advance(rows[token], action.event, **action.facts)
            if not rows[token].is_live and (rented := market(provider)):
                rented.delete_local_files(token)
        return True
    except Fenced:
        lost.add(token)
    except Exception as error:  # an error with a pod must not block the other pods
        if not isinstance(action, Delete):  # an action must be recorded before the effect
            lost.add(token)
        rate = rows[token].rate if token in rows else action.pod.rate() if isinstance(action, AdoptedRow) else 0
        cost = f"; the machine may still cost {per_hour(rate)}" if rate else ""
        problems.append(f"{rows[token].run if token in rows else token}: {describe(error)}{cost}")
    return False
