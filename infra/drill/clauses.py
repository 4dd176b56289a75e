"""The clauses of a drill: what our promises about money rest on, each a function of the evidence. Pure.

In: `Evidence`. Out: a `ClauseResult` for each clause: what was expected, what was seen, and whether that is the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.drill.evidence import STRAY, TIMED, WORKER, Evidence, Trial, VerbCall
from infra.money import in_usd, per_hour
from infra.providers import LAG_S
from infra.units import count, duration

KEPT, BROKEN, UNTOLD, UNREACHED = "kept", "broken", "untold", "unreached"
ROUNDED = 10_000  # micro-USD: a vendor may know amounts in cents only
DELETED_S = 120.0  # by the vendor's clock, from the answer to a deletion until the machine is off the listing
FAREWELL_S = 600.0  # likewise, from the end of the work until a pod that deletes itself is off the listing


@dataclass(frozen=True, kw_only=True)
class ClauseResult:
    """The result of one clause."""

    clause: str
    state: str  # KEPT, BROKEN; UNTOLD: the vendor does not say; UNREACHED: the drill did not come so far
    expected: str
    seen: str


Clause = Callable[[Evidence], ClauseResult]


def judge(seen: Evidence) -> list[ClauseResult]:
    """Return the result of every clause about this vendor, in the order of a pod's life."""
    without = {self_end} if seen.vendor.self_terminate != "pod_credential" else set[Clause]()
    without |= set() if seen.vendor.spend_limit else {spend_limit}
    return [clause(seen) for clause in CLAUSES if clause not in without]


def offer(seen: Evidence) -> ClauseResult:
    """Find whether an offer has one price while it is looked at and rented."""
    prices = [one.micro_usd for one in seen.of("catalog")]
    told = ", ".join("not on offer" if one is None else per_hour(one) for one in prices)
    expected = "the offer is listed again, at the same price"
    if len(prices) < 2:
        return _finding("offer", UNREACHED, expected, _lost(seen, WORKER))
    is_same = prices[0] is not None and set(prices) == {prices[0]}
    return _finding("offer", KEPT if is_same else BROKEN, expected, told)


def price(seen: Evidence) -> ClauseResult:
    """Find whether the pod costs what its offer said."""
    trial = seen.trial(WORKER)
    rates = (
        list(dict.fromkeys(pod.micro_usd_per_hour for pod in seen.rows(trial) if _is_up(pod.state))) if trial else []
    )
    expected = f"the pod costs {per_hour(trial.rate)}, as its offer" if trial else "the pod costs what its offer said"
    if not trial or not rates:
        return _finding("price", UNREACHED, expected, _lost(seen, WORKER))
    is_kept = all(0 < rate <= trial.rate + ROUNDED for rate in rates)
    return _finding("price", KEPT if is_kept else BROKEN, expected, ", then ".join(map(per_hour, rates)))


def token(seen: Evidence) -> ClauseResult:
    """Find whether every listing that shows the pod shows our token."""
    trial = seen.trial(WORKER)
    expected = "each listing that shows the pod shows its token"
    if not trial or not trial.pod_id:
        return _finding("token", UNREACHED, expected, _lost(seen, WORKER))
    rows = [pod for one in seen.of("list") for pod in one.pods if pod.pod_id == trial.pod_id]
    if not rows:
        return _finding("token", UNREACHED, expected, "no listing has shown the pod")
    bare = [pod for pod in rows if pod.token != trial.token]
    if bare:
        named = f", named {bare[0].name!r}" if bare[0].name else ""
        return _finding("token", BROKEN, expected, f"{len(bare)} of {count(len(rows), 'row')} without it{named}")
    return _finding("token", KEPT, expected, f"{count(len(rows), 'row')}, all with it")


def listing(seen: Evidence) -> ClauseResult:
    """Find whether a new pod is listed in time, and in every listing from then on until somebody ends it."""
    trial = seen.trial(WORKER)
    made = seen.create(trial) if trial else None
    expected = f"a new pod is in the listing within {duration(LAG_S)}"
    if not trial or not made or made.error and not trial.pod_id:  # it may be there though its answer was an error
        return _finding("listing", UNREACHED, expected, _lost(seen, WORKER))
    looks = [one for one in seen.of("list") if one.began_at >= made.ended_at and not one.error]
    first = next((one for one in looks if any(pod.pod_id == trial.pod_id for pod in one.pods)), None)
    if first is None:
        last_s = looks[-1].began_at - made.ended_at if looks else 0.0
        state = BROKEN if last_s > LAG_S else UNREACHED
        return _finding("listing", state, expected, f"not listed {duration(last_s)} after its creation")
    before = [one for one in looks if one.began_at < first.began_at]
    missed_s = before[-1].began_at - made.ended_at if before else 0.0  # until then at least it was not shown
    shown_s = first.ended_at - made.ended_at
    words = f"shown after {duration(shown_s)}"
    left_out, since = _left_out(seen, trial, made.ended_at + LAG_S)
    if left_out:
        words += f", then left out of {left_out} of {count(since, 'listing')}, and shown again"
    return _finding("listing", BROKEN if missed_s > LAG_S or left_out else KEPT, expected, words)


def _left_out(seen: Evidence, trial: Trial, since: float) -> tuple[int, int]:
    """Return how many listings between two that show a pod lack it, and how many there are, from that time on.

    Those after its first deletion do not count: it may be on its way out of a part of the listings.
    """
    deletes = seen.of("delete", trial.pod_id)
    until = seen.place(deletes[0]) if deletes else len(seen.asked)
    looks = [one for one in seen.of("list") if not one.error and one.began_at >= since and seen.place(one) < until]
    has = [any(pod.pod_id == trial.pod_id for pod in one.pods) for one in looks]
    shown = [number for number, is_shown in enumerate(has) if is_shown]
    between = has[shown[0] : shown[-1] + 1] if shown else []
    return between.count(False), len(between)


def timer(seen: Evidence) -> ClauseResult:
    """Find whether the vendor has armed the time limit that was asked for: as it tells, or by waiting for it."""
    trial, vendor = seen.trial(WORKER), seen.vendor
    if not vendor.tells_limits:
        return _timer_by_waiting(seen)
    made = seen.create(trial) if trial else None
    expected = "the vendor shows the time limit that was asked for"
    if not trial or not made:
        return _finding("timer", UNREACHED, expected, _lost(seen, WORKER))
    limit_s = _limit_s(seen, made, trial)
    most_s = math.ceil(limit_s / vendor.time_grain_s) * vendor.time_grain_s
    expected = f"the vendor's timer ends it {duration(limit_s)} after its creation"
    expected += f", rounded up to {duration(most_s)}" if most_s - limit_s > 1 else ""
    rows = [pod for pod in seen.shown_limits(trial) if _is_up(pod.state)]
    if not rows:
        return _finding("timer", UNREACHED, expected, _lost(seen, WORKER))
    unarmed = [pod for pod in rows if pod.ends_at is None]
    if unarmed:
        return _finding("timer", BROKEN, expected, f"no timer in {len(unarmed)} of {count(len(rows), 'row')}")
    told_s = sorted({round(pod.ends_at - made.began_at) for pod in rows if pod.ends_at is not None})
    is_kept = limit_s - vendor.slack_s <= told_s[0] and told_s[-1] <= most_s + vendor.slack_s
    return _finding("timer", KEPT if is_kept else BROKEN, expected, f"it ends it after {duration(told_s[-1])}")


def spend_limit(seen: Evidence) -> ClauseResult:
    """Find whether the vendor has armed the amount that was asked for."""
    trial, expected = seen.trial(WORKER), "the vendor shows the amount that was asked for"
    made = seen.create(trial) if trial else None
    rows = [pod for pod in seen.shown_limits(trial) if _is_up(pod.state)] if trial else []
    if not made or made.spend_micro_usd is None or not rows:
        return _finding("spend limit", UNREACHED, expected, _lost(seen, WORKER))
    expected = f"the vendor ends it at {in_usd(made.spend_micro_usd)}"
    told = {pod.spend_limit_micro_usd or 0 for pod in rows}
    is_kept = all(0 < amount <= made.spend_micro_usd + ROUNDED for amount in told)
    words = ", then ".join(in_usd(amount) if amount else "none" for amount in sorted(told))
    return _finding("spend limit", KEPT if is_kept else BROKEN, expected, words)


def key(seen: Evidence) -> ClauseResult:
    """Find whether the key that was sent with the request opens the pod."""
    trial, expected = seen.trial(WORKER), "the pod lets in the key that was made for it"
    tried = seen.of("reach", trial.pod_id) if trial and trial.pod_id else []
    if not tried:
        return _finding("key", UNREACHED, expected, _lost(seen, WORKER))
    if any(not one.error for one in tried):
        return _finding("key", KEPT, expected, "let in")
    kind = tried[-1].error.partition(":")[0]  # its words name files and addresses
    return _finding("key", BROKEN, expected, f"refused {count(len(tried), 'time')}, the last time by {kind}")


def machine(seen: Evidence) -> ClauseResult:
    return _seen_there(seen, "machine", "it has the GPUs of its offer", seen.ground.machine, "it has")


def host_key(seen: Evidence) -> ClauseResult:
    """Find whether a later connection meets the same host."""
    said = seen.ground.host_key
    return _seen_there(seen, "host key", "a second connection meets the host key of the first", said, "the same")


def guard(seen: Evidence) -> ClauseResult:
    said = seen.ground.guard
    return _seen_there(seen, "guard", "the pod's guard lives, with our token and limits", said, "alive and armed")


def log(seen: Evidence) -> ClauseResult:
    return _seen_there(seen, "log", "the log of the work is in the store", seen.ground.log, "it is")


def checkpoint(seen: Evidence) -> ClauseResult:
    said = seen.ground.checkpoint
    return _seen_there(seen, "checkpoint", "the checkpoint of the work is in the store, and whole", said, "it is")


def self_end(seen: Evidence) -> ClauseResult:
    """Find whether the pod deletes itself when its work is over."""
    trial = seen.trial(WORKER)
    expected = f"the pod deletes itself within {duration(FAREWELL_S)} of its last step"
    if not trial or not trial.pod_id or seen.ground.log is None:
        return _finding("self-end", UNREACHED, expected, _lost(seen, WORKER))
    gone = _gone_at(seen, trial)
    if _while_there(seen, trial):
        return _finding("self-end", BROKEN, expected, "it did not, and was deleted from here")
    return _finding("self-end", KEPT if gone is not None else BROKEN, expected,
                    "it is off the listing" if gone is not None else "it is still listed")  # fmt: skip


def lost_reply(seen: Evidence) -> ClauseResult:
    """Find whether a machine is found by its token, and is one, when the answer to its request was lost."""
    trial = seen.trial(STRAY)
    expected = "one request, one machine, found by its token"
    if not trial or not seen.creates:
        return _finding("lost reply", UNREACHED, expected, _lost(seen, STRAY))
    if seen.creates > 1:
        return _finding("lost reply", BROKEN, expected, f"{seen.creates} requests were sent")
    listed = [{pod.pod_id for pod in one.pods if pod.token == trial.token} for one in seen.of("list")]
    most = max(map(len, listed), default=0)
    if most > 1:
        return _finding("lost reply", BROKEN, expected, f"{most} machines with its token")
    if not trial.pod_id:
        return _finding("lost reply", BROKEN, expected, f"not found: {trial.failure or 'no listing shows it'}")
    return _finding("lost reply", KEPT, expected, "one, found")


def delete(seen: Evidence) -> ClauseResult:
    """Find whether a deletion that was answered has an effect, by id and in the listing."""
    most_s = DELETED_S + seen.vendor.late_s
    expected = f"the machine is off the listing within {duration(most_s)} of the answer"
    said = []
    for trial in seen.trials:
        asked = [one for one in seen.of("delete", trial.pod_id) if trial.pod_id and not one.error]
        if not asked:
            continue
        gone = _gone_at(seen, trial)
        needed = sum(one in asked for one in _while_there(seen, trial))
        if not needed:
            continue  # it had gone by itself
        again = f"; {needed} requests were sent" if needed > 1 else ""
        if gone is None or gone - asked[0].ended_at > most_s or again:
            last = [pod.state for pod in seen.rows(trial)]
            until = duration(gone - asked[0].ended_at) if gone is not None else "the end of the drill"
            words = f"the {trial.name} was still {last[-1] if last else 'there'} until {until}"
            return _finding("delete", BROKEN, expected, f"{words} after the answer{again}" if gone else words + again)
        said.append(f"the {trial.name} was off it after {duration(max(0.0, gone - asked[0].ended_at))}")
    if not said:
        return _finding("delete", UNREACHED, expected, _lost(seen, STRAY))
    return _finding("delete", KEPT, expected, "; ".join(said))


def bill(seen: Evidence) -> ClauseResult:
    """Find whether the vendor bills at most what our ledger has counted."""
    said, state = [], KEPT
    expected = "the vendor bills no more than our ledger has counted"
    for trial in seen.trials:
        told = [one.micro_usd for one in seen.of("billed", trial.pod_id) if trial.pod_id and one.micro_usd is not None]
        if not told:
            continue
        said.append(f"the {trial.name}: {in_usd(max(told))} billed, {in_usd(trial.ledger_micro_usd)} counted")
        state = BROKEN if max(told) > trial.ledger_micro_usd + ROUNDED else state
    if not said:
        state = UNTOLD if any(one.pod_id for one in seen.trials) else UNREACHED
        return _finding("bill", state, expected, "the vendor has told no bill yet: inv cost asks again")
    return _finding("bill", state, expected, "; ".join(said))


def nothing_left(seen: Evidence) -> ClauseResult:
    """Find whether everything that the drill has rented is proven gone."""
    expected = "every machine of the drill is proven gone"
    left = [one for one in seen.trials if not one.is_gone]
    last = next((one for one in reversed(seen.of("list")) if not one.error), None)
    shown = sorted({pod.pod_id for pod in last.pods}) if last else []
    if left or shown:
        words = ", ".join([*(f"the {one.name} ({one.pod_id or one.token})" for one in left), *shown])
        return _finding("nothing left", BROKEN, expected, f"not proven of {words}")
    return _finding("nothing left", KEPT, expected, f"{count(len(seen.trials), 'machine')}, all gone")


CLAUSES: Sequence[Clause] = (
    offer, price, token, listing, timer, spend_limit, key, machine, host_key, guard, log, checkpoint, self_end,
    lost_reply, delete, bill, nothing_left,
)  # fmt: skip


def _timer_by_waiting(seen: Evidence) -> ClauseResult:
    """Find whether a pod that nobody ended was ended by a timer that is not told: its vendor's or its container's."""
    trial = seen.trial(TIMED)
    made = seen.create(trial) if trial else None
    expected = "a timer ends a pod that nobody else ends"
    if not trial or not made or made.time_s is None:
        return _finding("timer", UNREACHED, expected, _lost(seen, TIMED))
    expected = f"a timer ends a pod that nobody else ends {duration(made.time_s)} after its creation"
    gone = _gone_at(seen, trial)
    if gone is None or _while_there(seen, trial):
        return _finding("timer", BROKEN, expected, "it did not, and was deleted from here")
    after_s, slack_s = gone - made.began_at, seen.vendor.slack_s
    shown = [one.began_at for one in seen.of("list") if any(pod.pod_id == trial.pod_id for pod in one.pods)]
    shown_s = max(shown, default=made.began_at) - made.began_at  # until then it lived; then nobody looked for a while
    is_kept = made.time_s - slack_s <= after_s and shown_s <= made.time_s + slack_s + seen.vendor.late_s
    words = f"listed after {duration(shown_s)}, not any more after {duration(after_s)}"
    return _finding("timer", KEPT if is_kept else BROKEN, expected, words)


def _limit_s(seen: Evidence, made: VerbCall, trial: Trial) -> float:
    """Return the time limit of a request; where the vendor has no limit of money, that counts as time."""
    limits = [] if made.time_s is None else [made.time_s]
    if made.spend_micro_usd is not None and not seen.vendor.spend_limit and trial.rate:
        limits.append(made.spend_micro_usd * 3600 / trial.rate)
    return min(limits, default=0.0)


def _gone_at(seen: Evidence, trial: Trial) -> float | None:
    """Return when a listing lacked a pod that an earlier one, or its creation, had shown, and none has had it since."""
    found = _absent(seen, trial)
    return None if found is None else found.began_at


def _while_there(seen: Evidence, trial: Trial) -> list[VerbCall]:
    """Return the deletions of a pod that were asked for before a listing lacked it, by their order.

    Their times are by the vendor's clock, which is known to the second: they cannot tell one from the next.
    """
    absent, deletes = _absent(seen, trial), seen.of("delete", trial.pod_id)
    return [one for one in deletes if absent is None or seen.place(one) < seen.place(absent)]


def _absent(seen: Evidence, trial: Trial) -> VerbCall | None:
    """Return the first of the listings without a pod that an earlier one, or its creation, had shown."""
    shown = [one for one in seen.of("list") if not one.error]
    has = [any(pod.pod_id == trial.pod_id for pod in one.pods) for one in shown]
    made = seen.create(trial)
    since = next((index for index in range(len(has), 0, -1) if has[index - 1]), 0)
    later = [one for one in shown[since:] if made is None or seen.place(one) > seen.place(made)]
    return later[0] if later and (any(has) or seen.of("delete", trial.pod_id)) else None


def _is_up(state: str) -> bool:
    return state in ("booting", "running")


def _seen_there(seen: Evidence, name: str, expected: str, said: str | None, well: str) -> ClauseResult:
    if said is None:
        return _finding(name, UNREACHED, expected, _lost(seen, WORKER))
    return _finding(name, BROKEN if said else KEPT, expected, said or well)


def _lost(seen: Evidence, name: str) -> str:
    """Return why a trial has not come so far."""
    trial = seen.trial(name)
    if trial is None:
        return f"the {name} was not rented"
    return f"the {name} was given up: {trial.failure}" if trial.failure else f"the {name} did not come so far"


def _finding(clause: str, state: str, expected: str, seen: str) -> ClauseResult:
    return ClauseResult(clause=clause, state=state, expected=expected, seen=seen)
