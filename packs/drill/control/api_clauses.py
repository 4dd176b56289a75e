"""Drill clauses about single vendor APIs: spot, self-deletion, rate limits, boot, GPU names and disk prices.

All functions are pure and return `ClauseResult` records.
"""

from infra.providers import LAG_S
from infra.providers.shutdown_paths import SELF_DELETE
from infra.units import count, duration, in_usd, per_hour
from packs.drill.control.evidence import SPOT, WORKER, Evidence
from packs.drill.control.readings import (
    BROKEN,
    KEPT,
    REFUSED,
    ROUNDED,
    UNREACHED,
    UNTOLD,
    ClauseResult,
    finding,
    missing_listings,
    no_evidence_reason,
)

MONTH_S = 730 * 3600.0
# RunPod's disk price of a running container, in micro-USD per GB-month: runpod/docs, pods/pricing.mdx, August 2026.
GB_MONTH_MICRO_USD = 100_000


def slices(seen: Evidence) -> ClauseResult:
    """Find whether the catalog names GPU slices (MIG) differently from whole GPUs."""
    expected = "a slice of a GPU has another name than the whole GPU"
    if not seen.calls_of("catalog"):
        return finding("slices", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    if not seen.slices:
        return finding("slices", KEPT, expected, "no slice is on offer")
    taken = [one.kind for one in seen.slices if one.whole]
    words = f"{taken[0]!r} is taken for a whole GPU" if taken else f"{count(len(seen.slices), 'slice')}, all with one"
    return finding("slices", BROKEN if taken else KEPT, expected, words)


def boot(seen: Evidence) -> ClauseResult:
    """Find whether the worker reaches the state "running"."""
    trial, expected = seen.trial(WORKER), "the machine boots"
    if not trial or not trial.pod_id:
        return finding("boot", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    rows = [(one, pod) for one in seen.calls for pod in one.pods if pod.pod_id == trial.pod_id]
    up = next((one for one, pod in rows if pod.state == "running"), None)
    made = seen.create(trial)
    began_at = made.began_at if made else rows[0][0].began_at if rows else 0.0
    if up:
        return finding("boot", KEPT, expected, f"it ran after {duration(max(0.0, up.ended_at - began_at))}")
    if not trial.failure or not rows:
        return finding("boot", UNREACHED, expected, no_evidence_reason(seen, WORKER))
    last, pod = rows[-1]
    after = duration(max(0.0, last.ended_at - began_at))
    gone = "the machine was deleted, and is proven gone" if trial.is_gone else "the machine is not proven gone"
    return finding("boot", BROKEN, expected, f"the machine never ran: still {pod.state} after {after}; {gone}")


def spot(seen: Evidence) -> ClauseResult:
    """Find whether a spot machine is listed within `LAG_S`, with the trial's token, at no more than the bid.

    Slipway takes the listing as proof of life or deletion, so the listing has to be complete.
    """
    trial, expected = (
        seen.trial(SPOT),
        "a spot machine is listed like other machines, with the token, and costs the bid",
    )
    made = seen.create(trial) if trial else None
    if not trial:
        return finding("spot", UNTOLD, expected, "no spot machine with one GPU was on offer")
    if not made or not trial.pod_id:
        return finding("spot", UNREACHED, expected, no_evidence_reason(seen, SPOT))
    deletes = seen.calls_of("delete", trial.pod_id)
    until = seen.place(deletes[0]) if deletes else len(seen.calls)
    looks = [one for one in seen.calls_of("list") if not one.error and seen.place(made) < seen.place(one) < until]
    rows = [pod for one in looks for pod in one.pods if pod.pod_id == trial.pod_id]
    if not rows:
        waited_s = looks[-1].began_at - made.ended_at if looks else 0.0
        state = BROKEN if waited_s >= LAG_S else UNREACHED
        return finding("spot", state, expected, f"not listed {duration(max(0.0, waited_s))} after the request")
    if any(pod.token != trial.token for pod in rows):
        return finding("spot", BROKEN, expected, "a row lacks the token of the machine")
    if dear := [pod.micro_usd_per_hour for pod in rows if pod.micro_usd_per_hour > trial.rate + ROUNDED]:
        return finding("spot", BROKEN, expected, f"it costs {per_hour(max(dear))}, the bid was {per_hour(trial.rate)}")
    missing, shown = missing_listings(seen, trial, made.ended_at + LAG_S)
    if missing:
        return finding("spot", BROKEN, expected, f"left out of {missing} of {count(shown, 'listing')}")
    return finding("spot", KEPT, expected, f"{count(len(rows), 'row')}, all with the token, at {per_hour(trial.rate)}")


def self_deletes(seen: Evidence) -> list[ClauseResult]:
    """Return a finding per self-delete request of the vendor: whether the request alone deletes the pod."""
    expected, tried = "the pod deletes itself by this request alone", {one.name: one for one in seen.self_deletes}
    is_enough = any(one.is_gone for one in seen.self_deletes)
    found = []
    for name in seen.vendor.self_deletes:
        clause, one = f"{SELF_DELETE}{name}", tried.get(name)
        if one is None:
            found.append(finding(clause, UNREACHED, expected, "no machine was left for the test"))
            continue
        state = KEPT if one.is_gone else REFUSED if is_enough else BROKEN
        after = "it is off the listing" if one.is_gone else "it is still listed"
        found.append(finding(clause, state, expected, f"answered {one.answer}; {after}"))
    return found


def throttle(seen: Evidence) -> ClauseResult:
    """Find whether the vendor serves a create request after earlier attempts failed with status 429."""
    expected = "a request to rent is served after a 429 and a pause"
    is_served = any(not one.error for one in seen.calls_of("create"))
    words = f"{count(seen.throttled, 'request')} refused, {'then served' if is_served else 'none served'}"
    return finding("throttle", KEPT if is_served else BROKEN, expected, words)


def refusal(seen: Evidence) -> ClauseResult:
    """Report refused create requests whose error message is not in Slipway's table of known refusals."""
    words = f"{count(len(seen.unknown_refusals), 'answer')} unknown to Slipway, the first {seen.unknown_refusals[0]!r}"
    return finding("refusal", BROKEN, "each refusal to rent is in Slipway's table of refusals", words)


def spot_in_v2(seen: Evidence) -> ClauseResult:
    """Find whether REST v2 lists a spot machine, which would make absence from REST v2 a proof of deletion."""
    words = "it does" if seen.spot_in_v2 else "it does not; GraphQL, which rented it, does"
    return finding("spot in v2", KEPT if seen.spot_in_v2 else REFUSED, "REST v2 alone lists the spot machine", words)


def disk_price(seen: Evidence) -> ClauseResult:
    """Find whether the billed disk cost stays within the vendor's price list."""
    said, state = [], KEPT
    for trial in seen.trials:
        told = [one.disk_micro_usd for one in seen.calls_of("billed", trial.pod_id) if one.disk_micro_usd is not None]
        made, last = (
            seen.create(trial),
            max((one.ended_at for one in seen.calls_of("billed", trial.pod_id)), default=0.0),
        )
        if not told or not trial.pod_id or not made:
            continue
        gb = trial.offer.disk_bytes / 10**9
        most = round(gb * GB_MONTH_MICRO_USD * max(0.0, last - made.began_at) / MONTH_S)
        said.append(f"the {trial.name}: {in_usd(max(told))} for {gb:.0f} GB, {in_usd(most)} expected at most")
        state = BROKEN if max(told) > most + ROUNDED else state
    return finding("disk price", state, "the disk costs the amount in the price list", "; ".join(said))


def tells_disk(seen: Evidence) -> bool:
    """Return whether any bill contains a disk cost."""
    return any(one.disk_micro_usd is not None for one in seen.calls_of("billed"))
