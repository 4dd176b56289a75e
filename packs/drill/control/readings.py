"""Shared pure helpers that read drill evidence for the clauses, and the result record of a clause."""

from dataclasses import dataclass

from packs.drill.control.evidence import Evidence, Trial, VerbCall

KEPT, BROKEN, UNTOLD, UNREACHED = "kept", "broken", "untold", "unreached"
REFUSED = "refused"
ROUNDED = 10_000  # micro-USD; tolerance for vendors that round to cents


@dataclass(frozen=True, kw_only=True)
class ClauseResult:
    """The result of one clause."""

    clause: str
    # KEPT, BROKEN, UNTOLD (no answer from the vendor yet), UNREACHED (the drill ended before the test) or REFUSED (this
    # API fails but an alternative works, so no promise is broken).
    state: str
    expected: str
    seen: str
    api: str = ""  # API of the test, as named by `infra.providers.promises.api_of`


def missing_listings(seen: Evidence, trial: Trial, since: float) -> tuple[int, int]:
    """Return the number of listings that omit a pod between two sightings, and the number of all listings in between.

    Count only listings from `since` until the first delete call: some listings may already omit a pod under deletion.
    """
    deletes = seen.calls_of("delete", trial.pod_id)
    until = seen.place(deletes[0]) if deletes else len(seen.calls)
    looks = [
        one for one in seen.calls_of("list") if not one.error and one.began_at >= since and seen.place(one) < until
    ]
    has = [any(pod.pod_id == trial.pod_id for pod in one.pods) for one in looks]
    shown = [number for number, is_shown in enumerate(has) if is_shown]
    between = has[shown[0] : shown[-1] + 1] if shown else []
    return between.count(False), len(between)


def gone_at(seen: Evidence, trial: Trial) -> float | None:
    """Return the start time of the first listing without the pod, or None.

    The pod must have been listed or deleted before, and no later listing may contain the pod.
    """
    found = first_absent_listing(seen, trial)
    return None if found is None else found.began_at


def deletes_while_listed(seen: Evidence, trial: Trial) -> list[VerbCall]:
    """Return the delete calls that were sent before the first listing without the pod.

    Compare call order, because the vendor's clock has a resolution of one second.
    """
    first, deletes = first_absent_listing(seen, trial), seen.calls_of("delete", trial.pod_id)
    return [one for one in deletes if first is None or seen.place(one) < seen.place(first)]


def first_absent_listing(seen: Evidence, trial: Trial) -> VerbCall | None:
    """Return the first listing after the last listing with the pod.

    Listings before the create call do not count. Return None if the pod was neither listed nor deleted before.
    """
    shown = [one for one in seen.calls_of("list") if not one.error]
    has = [any(pod.pod_id == trial.pod_id for pod in one.pods) for one in shown]
    made = seen.create(trial)
    since = next((index for index in range(len(has), 0, -1) if has[index - 1]), 0)
    later = [one for one in shown[since:] if made is None or seen.place(one) > seen.place(made)]
    return later[0] if later and (any(has) or seen.calls_of("delete", trial.pod_id)) else None


def is_up(state: str) -> bool:
    return state in ("booting", "running")


def no_evidence_reason(seen: Evidence, name: str) -> str:
    """Return the reason why a trial produced no evidence."""
    trial = seen.trial(name)
    if trial is None:
        return f"the {name} was not rented"
    return f"the {name} was given up: {trial.failure}" if trial.failure else f"the {name} did not get to this test"


def finding(clause: str, state: str, expected: str, seen: str) -> ClauseResult:
    return ClauseResult(clause=clause, state=state, expected=expected, seen=seen)
