"""The life cycle of a billable resource, as a table of transitions.

A row of the journal is PLANNED before any request is sent, and TERMINATED only after a proof of absence. `after`
refuses every transition missing from the table.
"""

from infra.errors import SlipwayError

PLANNED, CREATING, UNKNOWN, BOOTING = "PLANNED", "CREATING", "UNKNOWN", "BOOTING"
READY, LOST, TERMINATING, TERMINATED, FAILED = "READY", "LOST", "TERMINATING", "TERMINATED", "FAILED"

CUT_OFF = "its launch was cut off"  # start of the reason for a pod without a handover by the launch
ASKED = "asked"  # the only outcome of a run that is not a verdict state

ENDED = frozenset({TERMINATED, FAILED})
STATES = (PLANNED, CREATING, UNKNOWN, BOOTING, READY, LOST, TERMINATING, TERMINATED, FAILED)

TRANSITIONS = {
    (PLANNED, "sending"): CREATING,  # about to send the request to the vendor
    (PLANNED, "unsent"): FAILED,  # found later: no request was sent
    (CREATING, "created"): BOOTING,  # the vendor answered with an id
    (CREATING, "refused"): FAILED,  # a definite refusal
    (CREATING, "unclear"): UNKNOWN,  # any other answer, or found later
    (UNKNOWN, "found"): BOOTING,  # a listing shows the token
    (UNKNOWN, "absent"): FAILED,  # absent from complete listings for the settle time
    (BOOTING, "armed"): READY,  # a guard holds the token, and the identity is verified
    (READY, "unreachable"): LOST,
    (LOST, "reachable"): READY,
    (BOOTING, "gone"): TERMINATED,  # the vendor proves absence: preempted
    (READY, "gone"): TERMINATED,
    (LOST, "gone"): TERMINATED,
    (TERMINATING, "gone"): TERMINATED,
    (FAILED, "resurfaced"): TERMINATING,  # the token appeared after all: the pod must be ended
    (TERMINATED, "resurfaced"): TERMINATING,
    # The reason is a user's command, a deadline, a cap or a failure.
    **{(state, "end"): TERMINATING for state in (PLANNED, CREATING, UNKNOWN, BOOTING, READY, LOST)},
    # The pod is silent or was never seen, and the work continues elsewhere: the pod is ended when seen again.
    **{(state, "detach"): TERMINATING for state in (UNKNOWN, BOOTING, READY, LOST, TERMINATING)},
}
EVENTS = tuple(sorted({event for _, event in TRANSITIONS}))


def after(state: str, event: str) -> str:
    """Return the state after `event`. Raise SlipwayError for a transition missing from the table."""
    if (state, event) not in TRANSITIONS:
        raise SlipwayError(f"journal: event {event!r} is not possible in state {state}")
    return TRANSITIONS[state, event]
