"""The life cycle of one billable thing, as a table.

A row of the journal is PLANNED before anything is sent, and TERMINATED only once its absence was proven. What
no line of the table allows is refused.
"""

from infra.errors import SlipwayError

PLANNED, CREATING, UNKNOWN, BOOTING = "PLANNED", "CREATING", "UNKNOWN", "BOOTING"
READY, LOST, TERMINATING, TERMINATED, FAILED = "READY", "LOST", "TERMINATING", "TERMINATED", "FAILED"

CUT_OFF = "its launch was cut off"  # begins the reason of a pod whose launch did not come to the hand-over
ASKED = "asked"  # the one outcome of a run that is no state of a verdict

ENDED = frozenset({TERMINATED, FAILED})
STATES = (PLANNED, CREATING, UNKNOWN, BOOTING, READY, LOST, TERMINATING, TERMINATED, FAILED)

TRANSITIONS = {
    (PLANNED, "sending"): CREATING,  # about to ask the vendor
    (PLANNED, "unsent"): FAILED,  # found later: nothing had been sent
    (CREATING, "created"): BOOTING,  # the vendor answered with an id
    (CREATING, "refused"): FAILED,  # a definite no
    (CREATING, "unclear"): UNKNOWN,  # any other answer, or found later
    (UNKNOWN, "found"): BOOTING,  # a listing shows its token
    (UNKNOWN, "absent"): FAILED,  # not in complete listings for the settle time
    (BOOTING, "armed"): READY,  # a guard holds this token, and its identity is verified
    (READY, "unreachable"): LOST,
    (LOST, "reachable"): READY,
    (BOOTING, "gone"): TERMINATED,  # the vendor proves absence: preempted
    (READY, "gone"): TERMINATED,
    (LOST, "gone"): TERMINATED,
    (TERMINATING, "gone"): TERMINATED,
    (FAILED, "resurfaced"): TERMINATING,  # the token turned up after all: that pod must be ended
    (TERMINATED, "resurfaced"): TERMINATING,
    # Asked for, a deadline, a cap, a failure.
    **{(state, "end"): TERMINATING for state in (PLANNED, CREATING, UNKNOWN, BOOTING, READY, LOST)},
    # It is silent, or was never seen, and its work goes on elsewhere: it is ended once it is seen again.
    **{(state, "detach"): TERMINATING for state in (UNKNOWN, BOOTING, READY, LOST, TERMINATING)},
}
EVENTS = tuple(sorted({event for _, event in TRANSITIONS}))


def after(state: str, event: str) -> str:
    """Return the state that follows. Raises SlipwayError when the table has no such line."""
    if (state, event) not in TRANSITIONS:
        raise SlipwayError(f"journal: {event!r} cannot happen to what is {state}")
    return TRANSITIONS[state, event]
