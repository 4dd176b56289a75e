"""Clauses of a vendor drill: pure functions for the vendor promises behind Slipway's cost limits.

Each clause takes the evidence and returns a `ClauseResult` with the expected behavior, the observed behavior and a
state such as kept or broken.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from infra.providers import LAG_S
from infra.providers.promises import api_of
from infra.units import count, duration, in_usd, per_hour
from packs.drill.control import api_clauses
from packs.drill.control.evidence import SPOT, STRAY, TIMED, WORKER, Evidence, Trial, VerbCall
from packs.drill.control.readings import (
    BROKEN,
    KEPT,
    ROUNDED,
    UNREACHED,
    UNTOLD,
    ClauseResult,
    deletes_while_listed,
    finding,
    gone_at,
    is_up,
    missing_listings,
    no_evidence_reason,
)

# The limits below are seconds by the vendor's clock. Time from the answer to a deletion until the listing drops the
# machine.
DELETED_S = 120.0
# Time from the end of the work until the listing drops a self-deleting pod.
SELF_TERMINATE_S = 600.0
# Time within which a vendor has to answer a repeated request.
ANSWER_S = 3600.0
OF_SPOT = ("spot", "spot in v2")  # clauses about the spot machine
# Provider verb that supplies the evidence for each clause.
ASKS = {
    "offer": "catalog",
    "token": "list",
    "listing": "list",
    "timer": "find",
    "timer before boot": "find",
    "spend limit": "find",
    "spot": "list",
    "lost reply": "list",
    "delete": "list",
    "bill": "billed",
}

Clause = Callable[[Evidence], ClauseResult]


def judge(seen: Evidence) -> list[ClauseResult]:
    """Return the results of all applicable clauses, in the order of a pod's life."""
    vendor = seen.vendor
    has: dict[Clause, bool] = {
        timer: vendor.tells_limits or vendor.start_timer or vendor.time_limit,
        spend_limit: vendor.spend_limit,
        timer_before_boot: vendor.tells_limits and vendor.time_limit,
        self_end: vendor.self_terminate == "pod_credential",
        bill: vendor.tells_bills,
        api_clauses.spot: vendor.spot,
        api_clauses.throttle: bool(seen.throttled),
        api_clauses.refusal: bool(seen.unknown_refusals),
        api_clauses.spot_in_v2: seen.spot_in_v2 is not None,
        api_clauses.disk_price: api_clauses.tells_disk(seen),
        host_key: vendor.has_ssh,
    }
    found = [overdue(seen, clause(seen)) for clause in CLAUSES if has.get(clause, True)]
    found[-1:-1] = api_clauses.self_deletes(seen)
    return [replace(one, api=_api(seen, SPOT if one.clause in OF_SPOT else WORKER)) for one in found]


def _api(seen: Evidence, name: str) -> str:
    trial = seen.trial(name) or next(iter(seen.trials), None)
    return api_of(trial.offer) if trial else ""


def overdue(seen: Evidence, result: ClauseResult) -> ClauseResult:
    """Mark an undecided result as broken if the vendor has left all calls unanswered for at least `ANSWER_S`.

    Return the result unchanged if its state is neither UNREACHED nor UNTOLD.
    """
    asked = unanswered(seen).get(ASKS.get(result.clause, ""), ())
    if result.state not in (UNREACHED, UNTOLD) or not asked or asked[-1].ended_at - asked[0].began_at < ANSWER_S:
        return result
    since = duration(asked[-1].ended_at - asked[0].began_at)
    return replace(result, state=BROKEN, seen=f"asked {count(len(asked), 'time')} in {since}, never answered")


def unanswered(seen: Evidence) -> dict[str, list[VerbCall]]:
    """Return the calls per verb for verbs without any successful answer.

    A bill without an amount counts as unanswered.
    """
    found: dict[str, list[VerbCall]] = {}
    for verb in dict.fromkeys(ASKS.values()):
        if verb == "billed" and not seen.vendor.tells_bills:
            continue
        asked = [one for one in seen.calls_of(verb) if one.word or verb == "list"]
        if asked and all(one.error or verb == "billed" and one.micro_usd is None for one in asked):
            found[verb] = asked
    return found


def offer(seen: Evidence) -> ClauseResult:
    """Find whether the price of an offer stays the same between catalog look-ups and renting."""
    trial = seen.trial(WORKER)  # The worker's own offer; earlier offers may have failed.
    prices = [one.micro_usd for one in seen.calls_of("catalog", trial.offer.offer_id if trial else "")]
    told = ", ".join("not on offer" if one is None else per_hour(one) for one in prices)
    expected = "the offer is listed again, at the same price"
    if len(prices) < 2:
        return finding("offer", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    is_same = prices[0] is not None and set(prices) == {prices[0]}
    return finding("offer", KEPT if is_same else BROKEN, expected, told)


def price(seen: Evidence) -> ClauseResult:
    """Find whether the pod costs at most the hourly price of its offer."""
    trial = seen.trial(WORKER)
    rates = list(dict.fromkeys(pod.micro_usd_per_hour for pod in seen.rows(trial) if is_up(pod.state))) if trial else []
    expected = (
        f"the pod costs {per_hour(trial.rate)}, as in the offer" if trial else "the pod costs the price of the offer"
    )
    if not trial or not rates:
        return finding("price", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    is_kept = all(0 < rate <= trial.rate + ROUNDED for rate in rates)
    return finding("price", KEPT if is_kept else BROKEN, expected, ", then ".join(map(per_hour, rates)))


def token(seen: Evidence) -> ClauseResult:
    """Find whether every listing of the pod also shows the pod's token."""
    trial = seen.trial(WORKER)
    expected = "each listing of the pod shows the token of the pod"
    if not trial or not trial.pod_id:
        return finding("token", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    rows = [pod for one in seen.calls_of("list") for pod in one.pods if pod.pod_id == trial.pod_id]
    if not rows:
        return finding("token", UNREACHED, expected, "no listing has shown the pod")
    bare = [pod for pod in rows if pod.token != trial.token]
    if bare:
        named = f", named {bare[0].name!r}" if bare[0].name else ""
        return finding("token", BROKEN, expected, f"{len(bare)} of {count(len(rows), 'row')} without it{named}")
    return finding("token", KEPT, expected, f"{count(len(rows), 'row')}, all with it")


def listing(seen: Evidence) -> ClauseResult:
    """Find whether a new pod is listed within `LAG_S` and stays in every listing until its deletion."""
    trial = seen.trial(WORKER)
    made = seen.create(trial) if trial else None
    expected = f"a new pod is in the listing within {duration(LAG_S)}"
    if not trial or not made or made.error and not trial.pod_id:  # The pod may exist although the create call failed.
        return finding("listing", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    looks = [one for one in seen.calls_of("list") if one.began_at >= made.ended_at and not one.error]
    first = next((one for one in looks if any(pod.pod_id == trial.pod_id for pod in one.pods)), None)
    if first is None:
        last_s = looks[-1].began_at - made.ended_at if looks else 0.0
        state = BROKEN if last_s > LAG_S else UNREACHED
        return finding("listing", state, expected, f"not listed {duration(last_s)} after the request")
    before = [one for one in looks if one.began_at < first.began_at]
    missed_s = before[-1].began_at - made.ended_at if before else 0.0  # start of the last listing without the pod
    shown_s = first.ended_at - made.ended_at
    words = f"shown after {duration(shown_s)}"
    missing, since = missing_listings(seen, trial, made.ended_at + LAG_S)
    if missing:
        words += f", then left out of {missing} of {count(since, 'listing')}, and shown again"
    return finding("listing", BROKEN if missed_s > LAG_S or missing else KEPT, expected, words)


def timer(seen: Evidence) -> ClauseResult:
    """Find whether the vendor has armed the requested time limit.

    Read the limit that the vendor shows, or judge the TIMED machine if the vendor shows no limits.
    """
    trial, vendor = seen.trial(WORKER), seen.vendor
    if not vendor.tells_limits:
        return _timer_by_waiting(seen)
    made = seen.create(trial) if trial else None
    expected = "the vendor shows the requested time limit"
    if not trial or not made:
        return finding("timer", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    limit_s = _limit_s(seen, made, trial)
    most_s = math.ceil(limit_s / vendor.time_grain_s) * vendor.time_grain_s
    expected = f"the vendor's timer ends the pod {duration(limit_s)} after the request"
    expected += f", rounded up to {duration(most_s)}" if most_s - limit_s > 1 else ""
    rows = [pod for pod in seen.pods_with_limits(trial) if is_up(pod.state)]
    if not rows:
        return finding("timer", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    unarmed = [pod for pod in rows if pod.ends_at is None]
    if unarmed:
        return finding("timer", BROKEN, expected, f"no timer in {len(unarmed)} of {count(len(rows), 'row')}")
    told_s = sorted({round(pod.ends_at - made.began_at) for pod in rows if pod.ends_at is not None})
    is_kept = limit_s - vendor.slack_s <= told_s[0] and told_s[-1] <= most_s + vendor.slack_s
    return finding("timer", KEPT if is_kept else BROKEN, expected, f"it ends it after {duration(told_s[-1])}")


def timer_before_boot(seen: Evidence) -> ClauseResult:
    """Find whether the vendor shows an end time during boot, so that a failed boot also ends."""
    trial, expected = seen.trial(WORKER), "the vendor shows an end time during the boot"
    found = [pod for one in seen.calls_of("find", trial.pod_id) for pod in one.pods] if trial and trial.pod_id else []
    if not found:
        return finding("timer before boot", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    rows = [pod for pod in found if pod.state == "booting"]
    unarmed = [pod for pod in rows if pod.ends_at is None]
    if unarmed:
        words = f"none in {len(unarmed)} of {count(len(rows), 'row')}"
        return finding("timer before boot", BROKEN, expected, words)
    return finding("timer before boot", KEPT, expected, f"{count(len(rows), 'row')}, all with one")


def spend_limit(seen: Evidence) -> ClauseResult:
    """Find whether the vendor has armed the requested spend limit."""
    trial, expected = seen.trial(WORKER), "the vendor shows the requested spend limit"
    made = seen.create(trial) if trial else None
    rows = [pod for pod in seen.pods_with_limits(trial) if is_up(pod.state)] if trial else []
    if not made or made.spend_micro_usd is None or not rows:
        return finding("spend limit", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    expected = f"the vendor ends the pod at {in_usd(made.spend_micro_usd)}"
    told = {pod.spend_limit_micro_usd or 0 for pod in rows}
    is_kept = all(0 < amount <= made.spend_micro_usd + ROUNDED for amount in told)
    words = ", then ".join(in_usd(amount) if amount else "none" for amount in sorted(told))
    return finding("spend limit", KEPT if is_kept else BROKEN, expected, words)


def key(seen: Evidence) -> ClauseResult:
    """Find whether the SSH key of the create request opens the pod."""
    trial, expected = seen.trial(WORKER), "the pod accepts the SSH key of the request"
    tried = seen.calls_of("reach", trial.pod_id) if trial and trial.pod_id else []
    if not tried:
        return finding("key", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    if any(not one.error for one in tried):
        return finding("key", KEPT, expected, "let in")
    kind = tried[-1].error.partition(":")[0]  # The message is dropped because it contains files and addresses.
    return finding("key", BROKEN, expected, f"refused {count(len(tried), 'time')}, the last time with {kind}")


def machine(seen: Evidence) -> ClauseResult:
    return _seen_there(seen, "machine", "the machine has the GPUs of the offer", seen.ground.machine, "it has")


def host_key(seen: Evidence) -> ClauseResult:
    """Find whether a second connection sees the same host key."""
    said = seen.ground.host_key
    return _seen_there(
        seen, "host key", "a second connection sees the host key of the first connection", said, "the same"
    )


def guard(seen: Evidence) -> ClauseResult:
    said = seen.ground.guard
    return _seen_there(
        seen, "guard", "the pod's guard is alive, with Slipway's token and limits", said, "alive and armed"
    )


def log(seen: Evidence) -> ClauseResult:
    return _seen_there(seen, "log", "the log of the work is in the store", seen.ground.log, "it is")


def checkpoint(seen: Evidence) -> ClauseResult:
    said = seen.ground.checkpoint
    return _seen_there(seen, "checkpoint", "the checkpoint of the work is in the store and complete", said, "it is")


def self_end(seen: Evidence) -> ClauseResult:
    """Find whether the pod deletes itself after its work is over."""
    trial = seen.trial(WORKER)
    expected = f"the pod deletes itself within {duration(SELF_TERMINATE_S)} of the last step"
    if not trial or not trial.pod_id or seen.ground.log is None:
        return finding("self-end", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    gone = gone_at(seen, trial)
    if deletes_while_listed(seen, trial):
        return finding("self-end", BROKEN, expected, "the pod did not; the drill deleted the pod")
    return finding(
        "self-end",
        KEPT if gone is not None else BROKEN,
        expected,
        "it is off the listing" if gone is not None else "it is still listed",
    )


def lost_reply(seen: Evidence) -> ClauseResult:
    """Find whether a create request with a lost reply leaves exactly one machine, listed with the trial's token."""
    trial = seen.trial(STRAY)
    expected = "one request makes one machine, which is found by token"
    if not trial or not seen.creates:
        return finding("lost reply", UNREACHED, expected, no_evidence_reason(seen, STRAY))
    if seen.creates > 1:
        return finding("lost reply", BROKEN, expected, f"{seen.creates} requests were sent")
    listed = [{pod.pod_id for pod in one.pods if pod.token == trial.token} for one in seen.calls_of("list")]
    most = max(map(len, listed), default=0)
    if most > 1:
        return finding("lost reply", BROKEN, expected, f"{most} machines with the token")
    if not trial.pod_id:
        return finding("lost reply", BROKEN, expected, f"not found: {trial.failure or 'no listing shows it'}")
    return finding("lost reply", KEPT, expected, "one, found")


def delete(seen: Evidence) -> ClauseResult:
    """Find whether an answered deletion removes the machine from the listing in time and needs no second request."""
    most_s = DELETED_S + seen.vendor.late_s
    expected = f"the machine is off the listing within {duration(most_s)} of the answer"
    said = []
    for trial in seen.trials:
        asked = [one for one in seen.calls_of("delete", trial.pod_id) if trial.pod_id and not one.error]
        if not asked:
            continue
        gone = gone_at(seen, trial)
        needed = sum(one in asked for one in deletes_while_listed(seen, trial))
        if not needed:
            continue  # The pod had already deleted itself.
        again = f"; {needed} requests were sent" if needed > 1 else ""
        if gone is None or gone - asked[0].ended_at > most_s or again:
            last = [pod.state for pod in seen.rows(trial)]
            until = duration(gone - asked[0].ended_at) if gone is not None else "the end of the drill"
            words = f"the {trial.name} was still {last[-1] if last else 'there'} until {until}"
            return finding("delete", BROKEN, expected, f"{words} after the answer{again}" if gone else words + again)
        said.append(f"the {trial.name} was off it after {duration(max(0.0, gone - asked[0].ended_at))}")
    if not said:
        return finding("delete", UNREACHED, expected, no_evidence_reason(seen, STRAY))
    return finding("delete", KEPT, expected, "; ".join(said))


def bill(seen: Evidence) -> ClauseResult:
    """Find whether the vendor bills no more than the ledger has counted."""
    said, state = [], KEPT
    expected = "the vendor bills no more than Slipway's ledger has counted"
    for trial in seen.trials:
        told = [
            one.micro_usd for one in seen.calls_of("billed", trial.pod_id) if trial.pod_id and one.micro_usd is not None
        ]
        if not told:
            continue
        said.append(f"the {trial.name}: {in_usd(max(told))} billed, {in_usd(trial.ledger_micro_usd)} counted")
        state = BROKEN if max(told) > trial.ledger_micro_usd + ROUNDED else state
    if not said:
        state = UNTOLD if any(one.pod_id for one in seen.trials) else UNREACHED
        return finding("bill", state, expected, "the vendor has not reported a bill yet: inv cost asks again")
    return finding("bill", state, expected, "; ".join(said))


def nothing_left(seen: Evidence) -> ClauseResult:
    """Find whether every machine of the drill is proven gone."""
    expected = "every machine of the drill is proven gone"
    left = [one for one in seen.trials if not one.is_gone]
    last = next((one for one in reversed(seen.calls_of("list")) if not one.error), None)
    shown = sorted({pod.pod_id for pod in last.pods}) if last else []
    if left or shown:
        words = ", ".join([*(f"the {one.name} ({one.pod_id or one.token})" for one in left), *shown])
        return finding("nothing left", BROKEN, expected, f"not proven of {words}")
    return finding("nothing left", KEPT, expected, f"{count(len(seen.trials), 'machine')}, all gone")


CLAUSES: Sequence[Clause] = (
    offer,
    api_clauses.slices,
    price,
    token,
    listing,
    timer_before_boot,
    timer,
    spend_limit,
    api_clauses.boot,
    key,
    machine,
    host_key,
    guard,
    log,
    checkpoint,
    self_end,
    lost_reply,
    api_clauses.throttle,
    api_clauses.refusal,
    api_clauses.spot,
    api_clauses.spot_in_v2,
    delete,
    bill,
    api_clauses.disk_price,
    nothing_left,
)


def _timer_by_waiting(seen: Evidence) -> ClauseResult:
    """Find whether a hidden timer of the vendor or the container ended the TIMED pod in time, without a deletion."""
    trial = seen.trial(TIMED)
    made = seen.create(trial) if trial else None
    expected = "a timer ends a pod without another request"
    if not trial or not trial.pod_id or not made or made.time_s is None:
        return finding("timer", UNREACHED, expected, no_evidence_reason(seen, TIMED))
    expected = f"a timer ends a pod without another request {duration(made.time_s)} after the request to rent"
    gone = gone_at(seen, trial)
    if gone is None or deletes_while_listed(seen, trial):
        return finding("timer", BROKEN, expected, "the timer did not; the drill deleted the pod")
    after_s, slack_s = gone - made.began_at, seen.vendor.slack_s
    shown = [one.began_at for one in seen.calls_of("list") if any(pod.pod_id == trial.pod_id for pod in one.pods)]
    shown_s = max(shown, default=made.began_at) - made.began_at  # last listing of the pod
    is_kept = made.time_s - slack_s <= after_s and shown_s <= made.time_s + slack_s + seen.vendor.late_s
    words = f"listed after {duration(shown_s)}, no longer listed after {duration(after_s)}"
    return finding("timer", KEPT if is_kept else BROKEN, expected, words)


def _limit_s(seen: Evidence, made: VerbCall, trial: Trial) -> float:
    """Return the effective time limit of a create request in seconds, 0.0 without limits.

    For a vendor without spend limits, convert the spend limit to time at the price of the trial.
    """
    limits = [] if made.time_s is None else [made.time_s]
    if made.spend_micro_usd is not None and not seen.vendor.spend_limit and trial.rate:
        limits.append(made.spend_micro_usd * 3600 / trial.rate)
    return min(limits, default=0.0)


def _seen_there(seen: Evidence, name: str, expected: str, said: str | None, well: str) -> ClauseResult:
    if said is None:
        return finding(name, UNREACHED, expected, no_evidence_reason(seen, WORKER))
    return finding(name, BROKEN if said else KEPT, expected, said or well)
