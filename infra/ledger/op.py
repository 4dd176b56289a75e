"""A row of the journal: a billable resource with purpose, limits and outcome, and the states of its life. No database.

A row is PLANNED before any request is sent, and TERMINATED only after a proof of absence. `after` refuses every
transition missing from the table of transitions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.agent.job import Job
from infra.agent.limits import Clocks, gap_s
from infra.errors import Busy, SlipwayError, UsageError
from infra.records import Request

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
# Owners of a row: the run alone (""), the user who made a held pod, a set of pods, or a service.
OwnerKind = Literal["", "held", "pod_set", "service"]


def after(state: str, event: str) -> str:
    """Return the state after `event`. Raise SlipwayError for a transition missing from the table."""
    if (state, event) not in TRANSITIONS:
        raise SlipwayError(f"journal: event {event!r} is not possible in state {state}")
    return TRANSITIONS[state, event]


@dataclass(frozen=True, kw_only=True)
class Op:
    """A billable resource, as last read. Money is micro-USD, rates per hour; times are UTC epoch seconds."""

    token: str
    run: str
    rank: int = 0  # rank of the node
    detached: bool = False  # name, rank and target are free for a new pod; this pod is to be ended in any state
    owner_kind: OwnerKind = ""
    owner: str = ""  # name of the set of pods or of the service
    vendor: str
    account_fp: str = ""  # fingerprint of the renting account; "" = not reported by the vendor
    spec_hash: str = ""  # hash of the request: a set of pods ends a pod with a different hash
    target: str = ""  # artifact to produce: one live op for each target and store
    store: str = ""
    job: str = ""  # JSON, as handed over
    request: str = ""  # JSON: the requested kind of machine, to find a replacement
    recoveries: int = 0  # recoveries of the run by keepers, on this pod and earlier pods
    state: str = PLANNED
    epoch: int = 1
    place: str = ""  # the requested machine; leased to this row while the row is live
    devices: str = ""  # GPUs of the machine, such as `0,1`: other rows may use the rest; "" = the whole machine
    remote_id: str | None = None
    address: str | None = None
    rate: int = 0
    ttl_s: float | None = None
    cap: int | None = None
    budget: int | None = None  # limit of all pods under the names of the run; `cap` is the share of one pod
    budget_name: str = ""  # shared budget that pays for the pod (`infra.ledger.budgets`); "" = none
    budget_run: str = ""  # run in the shared budget with the reservation for this pod
    asked: str = ""  # JSON: options of the launch other than those of the work; "" = not recorded
    intent_at: int = 0
    sent_at: int | None = None
    # Time of the vendor's first listing, of the end of the checks on the machine, or of a guard's answer; the answer to
    # the create request does not count.
    last_seen_at: int | None = None
    first_absent_at: int | None = None  # since then, complete listings lack the pod without a break
    absent_n: int = 0  # number of these listings, counting only listings far enough apart
    del_requested_at: int | None = None
    ended_at: int | None = None  # time of the proof of absence
    billed_at: float | None = None  # start of billing, if the vendor reports a later time than the request
    boot_id: str = ""  # boot, and clock of the boot, at the request, or at the intent before a request
    boot_s: float = 0.0
    lived_s: float | None = None  # seconds until the proof of absence, by the clock that counted more
    reason: str = ""  # reason of the end or of an unclear state, for display
    # Outcome of the run on this pod: ASKED, or a verdict state; "" = a new pod may continue the run.
    outcome: str = ""

    def read_job(self) -> Job:
        """Return the job of this row. Raise UsageError for an unreadable job, written by a different version."""
        try:
            return Job.from_json(self.job)
        except ValueError as error:
            raise UsageError(
                f"{self.run}: the job in the journal cannot be read: {error}; end the run: ./inv down {self.run}"
            ) from None

    def read_request(self) -> Request:
        """Return the requested kind of machine; any machine of the vendor for a row without a request."""
        return Request(**json.loads(self.request)) if self.request else Request(run=self.run, provider=self.vendor)

    def since_sent_s(self, now: Clocks) -> float:
        """Return the seconds since the request, else the intent, by the clock that counted more; never negative."""
        at = float(self.intent_at if self.sent_at is None else self.sent_at)
        return gap_s(Clocks(self.boot_id, self.boot_s, at), now)

    def boot_clock_age_s(self, now: Clocks) -> float:
        """Return the minimum seconds since the request, else the intent, by the boot clock, which users cannot set."""
        return max(0.0, now.boot_s - self.boot_s if now.boot_id == self.boot_id else now.boot_s)

    @property
    def send_anyway(self) -> tuple[str, ...]:
        """Return the files of the checkout chosen by the launch for upload although they look like secrets."""
        return send_anyway_of(self.asked)

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED

    @property
    def is_spot(self) -> bool:
        """Return whether the request asked for a spot machine."""
        return bool(json.loads(self.request).get("spot")) if self.request else False

    @property
    def is_head(self) -> bool:
        """Return whether the row represents the run: node 0, and not detached."""
        return self.rank == 0 and not self.detached

    @property
    def run_of_nodes(self) -> str:
        """Return the name of the run of the node; the rank of a further node is the suffix of the name of the pod."""
        return self.run.removesuffix(f".{self.rank}") if self.rank else self.run

    @property
    def outlives_run(self) -> bool:
        """Return whether the pod stays after a run: a held pod or a member of a set of pods."""
        return self.owner_kind in ("held", "pod_set")

    @property
    def pod_set(self) -> str:
        """Return the name of the pod's set of pods, "" for none."""
        return self.owner if self.owner_kind == "pod_set" else ""

    @property
    def service(self) -> str:
        """Return the service with this pod as a replica, "" for none; a replica belongs to no run."""
        return self.owner if self.owner_kind == "service" else ""


@dataclass(frozen=True)
class JournalEvent:
    """One recorded change of a row."""

    token: str
    event: str  # an event of `infra.ledger.op`; or plan, note, claim
    state: str  # state after the event
    facts: Mapping[str, Any]
    at: int  # UTC epoch seconds


class AlreadyLive(UsageError):
    """The same run or target is already live; `op` is the live row."""

    def __init__(self, op: Op) -> None:
        self.op = op
        super().__init__(
            f"{op.run} already runs this work ({op.state} on {op.vendor}); run: inv status, or inv down {op.run}"
        )


class Leased(Busy):
    """A different pod holds the machine; `op` is the row of the holder. Only a proven end frees the machine."""

    def __init__(self, op: Op) -> None:
        self.op = op
        what = f"{op.place or 'this machine'}{f', device {op.devices},' if op.devices else ''}"
        super().__init__(
            f"{op.vendor}: {what} is in use by {op.run} ({op.state}); wait in line: --wait; see: inv status {op.run}"
        )


def send_anyway_of(asked: str) -> tuple[str, ...]:
    """Return the files chosen by a recorded launch for upload although they look like secrets."""
    found = json.loads(asked)["meant"].get("send_anyway") if asked else None
    return tuple(map(str, found or ()))
