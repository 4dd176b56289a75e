"""The evidence of a drill: what was asked of the vendor and came back, and what was seen on the pod and in the store.

In: a drill, as it goes on. Out: records that `packs.drill.control.clauses` judge.
Times are UTC epoch seconds by the vendor's clock, money is micro-dollars.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from infra.records import Offer, Pod

WORKER, STRAY, TIMED, SPOT = "worker", "stray", "timed", "spot"
LEAVERS = ("leaver", "leaver-2")  # each deletes itself by one of the requests that its vendor has for that


@dataclass(frozen=True, kw_only=True)
class VerbCall:
    """One verb of a provider, and what came of it."""

    verb: str  # catalog, create, arm, find, list, delete, billed, reach
    began_at: float
    ended_at: float
    word: str = ""  # the id or token that it was asked about; of create its token, of catalog the offer's id
    pods: tuple[Pod, ...] = ()  # pods that create, find and list returned; of a listing only pods of the drill
    micro_usd: int | None = None  # for catalog the price of that offer, for billed the bill
    disk_micro_usd: int | None = None  # the part of a bill that is for the disk, where the bill tells it
    time_s: float | None = None  # for create the requested time limit, for arm the requested end
    spend_micro_usd: int | None = None
    error: str = ""  # kind and message of the error; "" = it was answered


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """The abilities of a vendor, as its documentation has them."""

    name: str
    time_limit: bool
    time_grain_s: float
    spend_limit: bool
    tells_limits: bool
    resets_timer: bool
    start_timer: bool
    spot: bool
    tells_bills: bool
    has_ssh: bool  # a machine is reached by SSH, so that its host key can be seen
    self_deletes: tuple[str, ...]  # the requests by which a pod deletes itself, as `call_name` names them
    self_terminate: str
    slack_s: float  # seconds by which its timers may be off, as far as can be measured here
    late_s: float  # delay of observations from here: answers under way, a rehearsal's real processes
    clock_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One pod of the drill. `name`: what it is for: WORKER, STRAY, TIMED, SPOT or one of LEAVERS."""

    name: str
    token: str
    offer: Offer
    run: str = ""
    pod_id: str = ""
    ledger_micro_usd: int = 0  # cost by the journal
    is_gone: bool = False  # as the journal has it, which takes proof
    failure: str = ""  # reason why it was given up early

    @property
    def rate(self) -> int:
        """Return the price of its offer, per hour."""
        return self.offer.micro_usd_per_hour


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Observations on the worker itself and in the store. None = not observed yet."""

    machine: str | None = None  # "" = the GPUs that were offered
    host_key: str | None = None  # result of a second connection: "" = the same host key
    guard: str | None = None  # "" = alive, and armed with our token and limits
    log: str | None = None  # "" = in the store
    checkpoint: str | None = None  # "" = in the store, and whole


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A kind of GPU on offer that is a slice (MIG). `whole`: it counts as this whole GPU; "" = as none."""

    kind: str
    whole: str


@dataclass(frozen=True, kw_only=True)
class SelfDelete:
    """A request by which a pod deletes itself, made on a pod. `answer`: its status, or what came instead."""

    name: str
    answer: str
    is_gone: bool


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a drill has seen."""

    vendor: Vendor
    asked: tuple[VerbCall, ...] = ()
    trials: tuple[Trial, ...] = ()
    ground: Ground = field(default_factory=Ground)
    creates: int | None = None  # requests to rent that were sent for the stray, as the wire has them
    throttled: int = 0  # requests to rent that were answered with 429
    unknown_refusals: tuple[str, ...] = ()  # statuses and words of refusals to rent that no table of ours has
    spot_in_v2: bool | None = (
        None  # whether REST v2 alone lists the spot machine; None = one API lists all, or not tried
    )
    slices: tuple[Slice, ...] = ()
    self_deletes: tuple[SelfDelete, ...] = ()

    def trial(self, name: str) -> Trial | None:
        return next((one for one in self.trials if one.name == name), None)

    def of(self, verb: str, word: str = "") -> list[VerbCall]:
        """Return the verbs of that name, about that id or token where one is given."""
        return [one for one in self.asked if one.verb == verb and word in ("", one.word)]

    def place(self, call: VerbCall) -> int:
        """Return the index of a call among all that were made."""
        return next(number for number, one in enumerate(self.asked) if one is call)

    def create(self, trial: Trial) -> VerbCall | None:
        return next(iter(self.of("create", trial.token)), None)

    def shown_limits(self, trial: Trial) -> Iterator[Pod]:
        """Yield the pod of a trial as the vendor answered for its id, oldest first: a listing may leave limits out.

        Where a boot resets the timer, only from the moment on at which it was set again.
        """
        armed = self.of("arm", trial.pod_id) if self.vendor.resets_timer else []
        since = self.place(armed[0]) if armed else -1
        for one in self.of("find", trial.pod_id) if trial.pod_id else ():
            yield from (pod for pod in one.pods if is_of(pod, trial) and self.place(one) > since)

    def rows(self, trial: Trial) -> Iterator[Pod]:
        """Yield the pod of a trial as the vendor told it: by its id, and in listings, oldest first."""
        for one in self.asked:
            if one.verb in ("find", "list"):
                yield from (pod for pod in one.pods if is_of(pod, trial))


def is_of(pod: Pod, trial: Trial) -> bool:
    """Return whether a row belongs to that trial: by its id, or by its token where the id is not known."""
    return bool(pod.pod_id) and pod.pod_id == trial.pod_id or pod.token == trial.token
