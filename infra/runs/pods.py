"""Renting and ending of pods. The journal records the intent before each request and the result after the request.

    rent:  plan, sending | create | created, refused or unclear
    end:   end           | delete, look | gone

`end` repeats the delete request until the vendor proves the pod gone or a timeout passes.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from infra.agent.job import STAYS, Job, Limits
from infra.agent.limits import hard_limit_s, read_clocks
from infra.agent.process import current_identity
from infra.errors import Ambiguous, LimitHit, NoOffer, SlipwayError, UsageError
from infra.journal_file import Fenced, JournalError
from infra.ledger import accounts, budgets, spend, wait_queue
from infra.ledger.journal import Admit, Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import ASKED, BOOTING, CREATING, PLANNED, TERMINATING, UNKNOWN, Op, OwnerKind
from infra.ledger.wait_queue import QueueTicket
from infra.names import new_token
from infra.providers import Provider, clock_scale, find_pod, market
from infra.records import Offer, Pod, Request
from infra.runs import run_rows
from infra.runs.observation import AskedParties, Observation, folder_of, is_absent, observe_pod, pod_of, unproven_s
from infra.units import duration, per_hour
from store.backoff import Backoff

ASKED_FOR = {"reason": "asked for", "outcome": ASKED}  # Row fields of an end on request.
PATIENCE_S = 120.0  # Timeout while a vendor deletes.
REASON_CHARS = 300
SETTLE_S = 10.0  # Timeout of a deletion requested by a different process; the next look repeats the request.
LONGEST_S = 10 * 365 * 86400.0  # Longest time limit.
FIRST_WAIT_S = 0.25
BACKOFF = Backoff(FIRST_WAIT_S, longest_s=10.0, certain=0.0)
STOP_S = 300.0  # Time for a step to save, and for the uploader to upload the result.
LOOK = AskedParties.PROVIDER | AskedParties.FILES  # Parties to ask about a pod without a follower.
LOOK_S, LOOK_EVERY_S = 60.0, 3.0  # Vendor clock; for an unanswered create request.


class _Overtaken(SlipwayError):
    """The row was ended before the create request was sent."""


class StillBills(LimitHit):
    """The pod was asked to end, and is not proven gone."""


@dataclass(frozen=True, kw_only=True)
class RowDraft:
    """Journal fields of a pod beside the offer, request and job; see `Op`."""

    target: str = ""
    store: str = ""
    rank: int = 0
    recoveries: int = 0
    admit: Admit | None = None
    """Additional check of the pod, run before the row is written."""
    owner_kind: OwnerKind = ""
    owner: str = ""
    spec_hash: str = ""
    """Hash of the request; "" = hash of the job."""
    budget: int | None = None
    budget_name: str = ""
    """Name of the shared budget for the pod."""
    budget_run: str = ""
    ticket: QueueTicket | None = None
    """Place in the wait queue, for a launch after a wait."""
    asked: str = ""


PLAIN = RowDraft()


def rent(provider: Provider, request: Request, offer: Offer, job: Job, journal: Journal, row: RowDraft = PLAIN) -> Op:
    """Rent one pod from `offer` for `job`, and return the row; the `job` field adds the token and the price.

    Raises AlreadyLive if the run, or the target in the store, is live, and Leased if the offered machine is occupied;
    no request was sent then. After Ambiguous, a pod may exist: the row is UNKNOWN. After other errors, no pod exists.
    """
    if provider.is_rented:
        check_end(offer, job.limits)
        _check_clock(provider)
    token = new_token(journal.installation)
    limits = replace(job.limits, micro_usd_per_hour=offer.micro_usd_per_hour)
    spec_hash = row.spec_hash or hashlib.sha256(replace(job, token="").to_json().encode()).hexdigest()
    environ = {**job.environ, "SLIPWAY_CLOUD": offer.provider}
    job = replace(job, run=request.run, token=token, limits=limits, environ=environ)

    def admit(rows: list[Op], new: Op) -> None:
        wait_queue.admit(journal, rows, new, row.ticket)
        budgets.admit(journal, rows, new, clock_scale(provider))
        if row.admit:
            row.admit(rows, new)

    with _holding_pod_lease(journal, token):  # Other processes do not clear the row away while this process lives.
        op = journal.plan(
            token=token,
            run=request.run,
            rank=row.rank,
            vendor=provider.name,
            target=row.target,
            store=row.store,
            spec_hash=spec_hash,
            job=job.to_json(),
            request=json.dumps(asdict(request)),
            rate=offer.micro_usd_per_hour,
            ttl_s=limits.time_s,
            cap=limits.spend_micro_usd,
            place=offer.place,
            devices=request.devices,
            recoveries=row.recoveries,
            admit=admit,
            owner_kind=row.owner_kind,
            owner=row.owner,
            budget=row.budget,
            budget_name=row.budget_name,
            budget_run=row.budget_run,
            asked=row.asked,
            account_fp=_account_of(provider),
            remote_id=f"{token}@{offer.place}" if offer.place else None,
        )
        op = journal.advance(op, "sending")
        try:
            if journal.op(token).epoch != op.epoch:  # This machine may have slept for hours since the row was written.
                raise _Overtaken(f"{op.run} was ended before the request for a machine; nothing was rented")
            _check_clock(provider)  # The vendor's account has answered since the first check.
            journal.leases.check_held()
            pod = provider.create(request, offer, token, limits)
        except _Overtaken:
            raise
        except BaseException as error:  # Includes Ctrl-C: the request may have arrived.
            if isinstance(error, SlipwayError) and not isinstance(error, Ambiguous):
                journal.advance(op, "refused", reason=str(error))
                if rented := market(provider):
                    rented.delete_local_files(token)
                raise
            op = journal.advance(op, "unclear", reason=str(error) or type(error).__name__)
            found = _look_for(provider, op.remote_id or token) if isinstance(error, Ambiguous) else None
            if found is None:
                raise
            return _came(provider, journal, op, "found", found)
        return _came(provider, journal, op, "created", pod)


def _account_of(provider: Provider) -> str:
    """Return a fingerprint of the renting account, or "" if the vendor does not report the account."""
    try:
        return accounts.fingerprint(provider)
    except SlipwayError:
        return ""


def _check_clock(provider: Provider) -> None:
    """Raise SlipwayError if the clock skew in the vendor's last answer would make the vendor's timers unreliable."""
    rented = market(provider)
    if rented and rented.skew_problem:
        raise SlipwayError(f"{provider.name}: {rented.skew_problem}; nothing was rented")


def check_end(offer: Offer, limits: Limits) -> None:
    """Check the limits for a pod from this offer. Raises NoOffer without a price, UsageError without a limit.

    Own machines need no limit.
    """
    if offer.is_own:
        return
    if offer.micro_usd_per_hour <= 0:
        raise NoOffer(
            f"{offer.provider}: {offer.offer_id}: the vendor gives no price, so a spend limit could not be enforced"
        )
    limit_s = hard_limit_s(replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour))
    timed_s = 1.0 if limits.time_s is None else limits.time_s
    if limit_s is None or not 0 < limit_s < LONGEST_S or not 0 < timed_s < LONGEST_S:
        # A limit of centuries gives no protection.
        raise UsageError(
            f"{offer.provider}: no limit would end this pod; nothing was rented; give --ttl or --spend-limit"
        )


def ask_to_end(op: Op, journal: Journal) -> Op:
    """Record the request to end this pod and the run, and return the row. Idempotent.

    Afterwards no launch or keeper moves the run to a new pod, even if this pod ended earlier for other reasons.
    """
    while True:
        op = journal.op(op.token)
        try:
            if op.is_live and op.state != TERMINATING:
                return journal.advance(op, "end", **ASKED_FOR)
            return op if op.outcome not in run_rows.GOES_ON else journal.note(op, outcome=ASKED)
        except Fenced:  # The row has just changed; the request still holds.
            continue


def end(
    provider: Provider, op: Op, journal: Journal, reason: str = "", outcome: str = "", patience_s: float = PATIENCE_S
) -> Op:
    """End a pod, and return the row once the pod is proven gone. Idempotent.

    `reason` is shown to users; without a reason the end counts as a user request. `outcome` gives the final state of
    the run; "" lets a new pod continue the run. If the pod is not proven gone within `patience_s` seconds, raises
    SlipwayError (StillBills for a rented pod) with the possible cost, and the row stays TERMINATING.
    """
    if not op.is_live:
        return op
    if op.state != TERMINATING:
        op = journal.advance(op, "end", reason=reason, outcome=outcome) if reason else ask_to_end(op, journal)
        if not op.is_live:
            return op
    deadline, failures, is_asked = time.monotonic() + patience_s, 0, False
    while True:
        try:
            seen, is_fresh = None, unproven_s(provider, op) > 0
            if is_fresh or not op.remote_id:
                seen = find_pod(provider, op.remote_id or op.token, op.is_spot)
            if seen and is_fresh:  # After the vendor has listed the pod, a later absence is proof.
                op = journal.note(op, last_seen_at=int(time.time()), remote_id=seen.pod_id)
            pod_id = op.remote_id or (seen.pod_id if seen else "")
            if pod_id and not is_asked:
                journal.leases.check_held()
                provider.delete(pod_id)
                # Deletion takes time, and a vendor without the pod in its list may have ignored the request.
                is_asked = provider.is_rented and unproven_s(provider, op) <= 0
            _prove_absence(provider, op)
            break
        except Fenced:  # A different process changed the row and may have ended the pod.
            return end(provider, journal.op(op.token), journal, reason, outcome, patience_s)
        except SlipwayError as error:
            is_known = (
                op.remote_id
                or not op.sent_at
                or journal.leases.holder(run_rows.lease(op.token)) not in (None, current_identity())
            )
            left_s = deadline - time.monotonic() if provider.is_rented and is_known else 0.0
            if left_s <= 0:
                cost = f", and cost {per_hour(op.rate)}" if op.rate else ""
                kind = StillBills if op.rate else SlipwayError
                raise kind(
                    f"ending {op.run}: {error}; the pod may still run{cost}. Run again: inv down {op.run}"
                ) from error
            failures += 1
            time.sleep(min(left_s, max(FIRST_WAIT_S, BACKOFF.wait_s(failures))))
            op = journal.op(op.token)  # A sweep may have seen the pod, or the end of the pod, in the meantime.
            if not op.is_live:
                return op
    with contextlib.suppress(Fenced):  # A different process proved the end first.
        op = journal.advance(op, "gone")
        if rented := market(provider):
            rented.delete_local_files(op.token)
        from infra.runs import ssh_names  # each command settles, and few prove a pod to be gone

        ssh_names.take_away(op, journal)
        return op
    return end(provider, journal.op(op.token), journal)


def record_verdict(op: Op, journal: Journal, verdict: Mapping[str, Any]) -> Op:
    """Record the verdict of a pod that was gone before a process read the verdict; return the row.

    A row with a final outcome stays unchanged.
    """
    while op.outcome in run_rows.GOES_ON:
        try:
            return journal.note(op, reason=end_reason(verdict), outcome=verdict["state"])
        except Fenced:  # The row has just changed.
            op = journal.op(op.token)
    return op


def detach(op: Op, journal: Journal, reason: str) -> Op:
    """Detach the row of a pod not proven gone, so that a new pod can take over the node.

    The row stays TERMINATING and the machine leased until a later `settle` reaches the machine and ends the pod. Use
    only for a node that cannot continue working: see `infra.agent.execution.nodes`.
    """
    return journal.advance(op, "detach", reason=reason)


def stop_work(provider: Provider, op: Op) -> None:
    """Stop the work on a pod, and wait for the saves of the steps and the last uploads. Raises SlipwayError."""
    pod, transport = folder_of(op), provider.reach(pod_of(op))
    words = [transport.python, "-m", transport.agent, "stop", str(pod.root)]
    done = transport.run(words, timeout_s=STOP_S, env={"PYTHONPATH": str(pod.code)})
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: stopping the work: exit code {done.exited}: {done.stderr.strip()}")


def settle(provider: Provider, op: Op, journal: Journal, seen: Observation | None = None, waits: bool = True) -> Op:
    """Settle a live row without a keeper: end the pod after its work or after the death of the renter.

    End a pod that has a verdict, was asked to end, never received a job, is gone, or (rented) has reached a limit.
    Leave the row of an active pod, and of a pod still being rented by a live process (including this process). For a
    pod that outlives its work, the verdict only frees the pod for new work.

    `seen` is a recent observation of the pod. Use `waits=False` to return sooner when a user waits for an answer; a
    different process then proves the end. Raises the errors of `end`, and SlipwayError if the state is unknown.
    """
    patience_s = PATIENCE_S if waits else SETTLE_S
    if op.state == TERMINATING:
        return end(provider, op, journal, patience_s=SETTLE_S if waits else 0.0)
    rented = market(provider)
    if rented and (why := spend.due(op, read_clocks(), rented.clock_scale)):  # The vendor may know, too.
        return end(provider, op, journal, why, "limit", patience_s)
    if op.state in (PLANNED, CREATING, UNKNOWN):
        return _cut_off(provider, op, journal, patience_s)
    seen = observe_pod(op, provider, LOOK) if seen is None else seen
    if seen.exists is False:
        return end(provider, op, journal, seen.why, patience_s=patience_s)
    if op.state == BOOTING:
        return _cut_off(provider, op, journal, patience_s)
    verdict = seen.verdict
    if seen.exists is None and not verdict or not verdict and seen.why:
        raise SlipwayError(seen.why or f"{op.run}: the state is not known")
    if rented and verdict.get("state") == "failed" and op.read_job().on_failure == "keep":
        return op
    if op.outlives_run and verdict.get("state") in STAYS:
        with contextlib.suppress(Fenced):  # The pod has received new work in the meantime.
            return journal.note(op, target="") if op.target else op
        return op
    return end(provider, op, journal, end_reason(verdict), verdict["state"], patience_s) if verdict else op


def _cut_off(provider: Provider, op: Op, journal: Journal, patience_s: float) -> Op:
    """End a pod after the death of the renter; leave a pod still being rented."""
    try:
        journal.leases.acquire(run_rows.lease(op.token))
    except LeaseHeld:
        return op
    return end(provider, op, journal, "its launch was cut off", patience_s=patience_s)


def end_reason(verdict: Mapping[str, Any]) -> str:
    """Return the reason text for the end of a pod with this verdict."""
    why = verdict.get("reason") if verdict["state"] in ("failed", "limit", "lost") else ""
    return f"the work has ended: {verdict['state']}{f': {why}' if why else ''}"[:REASON_CHARS]


def _look_for(provider: Provider, pod: str) -> Pod | None:
    """Return the pod of an unanswered create request, or None; vendors usually list a new pod within a minute."""
    deadline = time.monotonic() + (LOOK_S / clock_scale(provider) if provider.is_rented else 0.0)
    while True:
        with contextlib.suppress(SlipwayError):  # Treat an error like an unlisted pod.
            if (found := provider.find(pod)) is not None:
                return found
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(LOOK_EVERY_S, LOOK_S / clock_scale(provider) / 10))


@contextlib.contextmanager
def _holding_pod_lease(journal: Journal, token: str) -> Iterator[None]:
    """Take the lease of a pod for this process; release the lease on an error, so that sweeps can settle the row."""
    held = journal.leases.acquire(run_rows.lease(token))
    try:
        yield
    except BaseException:
        with contextlib.suppress(JournalError):  # The journal itself may have failed.
            journal.leases.release(held)
        raise


def _came(provider: Provider, journal: Journal, op: Op, event: str, pod: Pod) -> Op:
    rate = pod.rate(op.rate)
    try:
        return journal.advance(op, event, remote_id=pod.pod_id, address=pod.address, rate=rate)
    except Fenced:  # The row was ended, perhaps hours ago, before the pod existed.
        now = journal.op(op.token)
        if not now.is_live:
            now = journal.advance(
                now, "resurfaced", remote_id=pod.pod_id, reason="the machine appeared after the recorded end"
            )
        if now.state == TERMINATING:
            end(provider, journal.note(now, remote_id=pod.pod_id, last_seen_at=int(time.time()), rate=rate), journal)
        raise


def _prove_absence(provider: Provider, op: Op) -> None:
    """Raise SlipwayError unless a look-up and a complete listing, both late enough, prove the pod gone."""
    wait_s = unproven_s(provider, op)
    if wait_s > 0:
        what = "the pod was rented just now" if op.remote_id else "the id of the pod is not known"
        raise SlipwayError(f"{what}, and the pod may still appear in the listing for {duration(wait_s)}")
    if not is_absent(provider, op):
        raise SlipwayError(f"{provider.name} still has the pod")
