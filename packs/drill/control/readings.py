"""Readings of the evidence that several clauses share, and the record of a clause's result. Pure."""

from dataclasses import dataclass

from packs.drill.control.evidence import Evidence, Trial, VerbCall

KEPT, BROKEN, UNTOLD, UNREACHED = "kept", "broken", "untold", "unreached"
REFUSED = "refused"
ROUNDED = 10_000  # micro-USD: a vendor may know amounts in cents only


@dataclass(frozen=True, kw_only=True)
class ClauseResult:
    """The result of one clause."""

    clause: str
    # KEPT, BROKEN; UNTOLD: the vendor does not say yet; UNREACHED: the drill did not come so far; REFUSED: this way is
    # closed, and another one does the same, so that no promise is broken.
    state: str
    expected: str
    seen: str
    api: str = ""  # where it was tried, as `infra.providers.promises.abilities.api_of` names it


def left_out(seen: Evidence, trial: Trial, since: float) -> tuple[int, int]:
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


def gone_at(seen: Evidence, trial: Trial) -> float | None:
    """Return when a listing lacked a pod that an earlier one, or its creation, had shown, and none has had it since."""
    found = absent(seen, trial)
    return None if found is None else found.began_at


def while_there(seen: Evidence, trial: Trial) -> list[VerbCall]:
    """Return the deletions of a pod that were asked for before a listing lacked it, by their order.

    Their times are by the vendor's clock, which is known to the second: they cannot tell one from the next.
    """
    first, deletes = absent(seen, trial), seen.of("delete", trial.pod_id)
    return [one for one in deletes if first is None or seen.place(one) < seen.place(first)]


def absent(seen: Evidence, trial: Trial) -> VerbCall | None:
    """Return the first of the listings without a pod that an earlier one, or its creation, had shown."""
    shown = [one for one in seen.of("list") if not one.error]
    has = [any(pod.pod_id == trial.pod_id for pod in one.pods) for one in shown]
    made = seen.create(trial)
    since = next((index for index in range(len(has), 0, -1) if has[index - 1]), 0)
    later = [one for one in shown[since:] if made is None or seen.place(one) > seen.place(made)]
    return later[0] if later and (any(has) or seen.of("delete", trial.pod_id)) else None


def is_up(state: str) -> bool:
    return state in ("booting", "running")


def lost(seen: Evidence, name: str) -> str:
    """Return why a trial has not come so far."""
    trial = seen.trial(name)
    if trial is None:
        return f"the {name} was not rented"
    return f"the {name} was given up: {trial.failure}" if trial.failure else f"the {name} did not come so far"


def finding(clause: str, state: str, expected: str, seen: str) -> ClauseResult:
    return ClauseResult(clause=clause, state=state, expected=expected, seen=seen)
