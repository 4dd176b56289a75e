"""A row of the journal: one billable thing, what it is for, and what became of it. No database here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.agent.job import Job
from infra.agent.limits import Clocks, gap_s
from infra.errors import Busy, UsageError
from infra.ledger.life_cycle import ENDED, PLANNED
from infra.records import Request

# Kinds of owners of a row: its run alone, the person who made a pod that stays, a set of pods, a service.
OwnerKind = Literal["", "held", "pod_set", "service"]


@dataclass(frozen=True, kw_only=True)
class Op:
    """One billable thing, as last read. Money is micro-USD, rates per hour; times are UTC epoch seconds."""

    token: str
    run: str
    rank: int = 0  # rank of its node
    detached: bool = False  # its name, rank and target are free for another pod; whatever it is, it is to be ended
    owner_kind: OwnerKind = ""
    owner: str = ""  # name of the set of pods or of the service
    vendor: str
    account_fp: str = ""  # fingerprint of the account that rents it; "" = its vendor did not say
    spec_hash: str = ""  # hash of what was asked for: a set ends a pod that is wanted otherwise
    target: str = ""  # the artifact it makes, and where: one live op for each pair
    store: str = ""
    job: str = ""  # JSON, as it is handed over
    request: str = ""  # JSON: what kind of machine was asked for, so that another one can be found
    recoveries: int = 0  # times that a keeper has brought the run back, on this pod and those before it
    state: str = PLANNED
    epoch: int = 1
    place: str = ""  # the one machine that it wants; leased to this row while it is live
    devices: str = ""  # GPUs of that machine, such as `0,1`: others may have the rest; "" = the whole machine
    remote_id: str | None = None
    address: str | None = None
    rate: int = 0
    ttl_s: float | None = None
    cap: int | None = None
    budget: int | None = None  # all pods under the names of its run may cost so much; each has a share of that as `cap`
    budget_name: str = ""  # the budget that pays for it, of many runs (`infra.ledger.budgets`); "" = none
    budget_run: str = ""  # the run whose reservation there it is part of
    asked: str = ""  # JSON: the words of its launch besides those on what it makes; "" = not on record
    intent_at: int = 0
    sent_at: int | None = None
    # when its vendor first listed it, or its guard answered; the answer to its creation is not enough
    last_seen_at: int | None = None
    first_absent_at: int | None = None  # since then, complete listings lack it without a break
    absent_n: int = 0  # number of those listings that count, as they are apart enough
    del_requested_at: int | None = None
    ended_at: int | None = None  # when it was proven gone
    billed_at: float | None = None  # when its vendor began to bill it, where that is later than the request and told
    boot_id: str = ""  # the boot, and its own clock, when it was sent, or before that intended
    boot_s: float = 0.0
    lived_s: float | None = None  # time until it was proven gone, by the clock that counted more
    reason: str = ""  # reason of its end, or of what is unclear, for people
    outcome: str = ""  # end of its run with it: ASKED, or the state of a verdict; "" = another pod may go on with it

    def read_job(self) -> Job:
        """Return the job of this row. Raises UsageError for one that cannot be read: another Slipway has written it."""
        try:
            return Job.from_json(self.job)
        except ValueError as error:
            raise UsageError(f"{self.run}: its job in the journal cannot be read: {error}; end it: "
                             f"./inv down {self.run}") from None  # fmt: skip

    def read_request(self) -> Request:
        """Return what kind of machine was asked for; a row without a request asks for any of its vendor."""
        return Request(**json.loads(self.request)) if self.request else Request(run=self.run, provider=self.vendor)

    def since_sent_s(self, now: Clocks) -> float:
        """Return the time since it was sent, or else intended, by the clock that says more; never negative."""
        at = float(self.intent_at if self.sent_at is None else self.sent_at)
        return gap_s(Clocks(self.boot_id, self.boot_s, at), now)

    def settling_s(self, now: Clocks) -> float:
        """Return how long ago it was sent, or else intended, at least: by the boot's own clock, which nobody sets."""
        return max(0.0, now.boot_s - self.boot_s if now.boot_id == self.boot_id else now.boot_s)

    @property
    def send_anyway(self) -> tuple[str, ...]:
        """Return the files of the checkout that its launch named to be sent although they look like secrets."""
        return send_anyway_of(self.asked)

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED

    @property
    def is_spot(self) -> bool:
        """Return whether it was asked for as spot."""
        return bool(json.loads(self.request).get("spot")) if self.request else False

    @property
    def is_head(self) -> bool:
        """Return whether it stands for its run: it is node 0, and not detached."""
        return self.rank == 0 and not self.detached

    @property
    def stays(self) -> bool:
        """Return whether it is there for its own sake, and not for one piece of work."""
        return self.owner_kind in ("held", "pod_set")

    @property
    def pod_set(self) -> str:
        """Return the set of pods that it belongs to, "" for none."""
        return self.owner if self.owner_kind == "pod_set" else ""

    @property
    def service(self) -> str:
        """Return the service that it is a replica of, "" for none.

        Its controller looks after it; it is nobody's run.
        """
        return self.owner if self.owner_kind == "service" else ""


@dataclass(frozen=True)
class JournalEvent:
    """One change of a row, as it was written down."""

    token: str
    event: str  # an event of `infra.ledger.life_cycle`; or plan, note, claim
    state: str  # after it
    facts: Mapping[str, Any]
    at: int  # UTC epoch seconds


class Taken(UsageError):
    """The same thing is live already; `op` is its row."""

    def __init__(self, op: Op) -> None:
        self.op = op
        super().__init__(
            f"{op.run} is already running it ({op.state} on {op.vendor}); run: inv status, or inv down {op.run}"
        )


class Leased(Busy):
    """The machine holds another pod; `op` is its row. It is free when that row has ended, which takes proof."""

    def __init__(self, op: Op) -> None:
        self.op = op
        what = f"{op.place or 'this machine'}{f', device {op.devices},' if op.devices else ''}"
        super().__init__(f"{op.vendor}: {what} is leased by {op.run} ({op.state}); stand in line for it: --wait; see: "
                         f"inv status {op.run}")  # fmt: skip


def send_anyway_of(asked: str) -> tuple[str, ...]:
    """Return the files that a launch, as the journal keeps its words, has named to be sent all the same."""
    found = json.loads(asked)["meant"].get("send_anyway") if asked else None
    return tuple(map(str, found or ()))
