"""Records of a vendor drill: calls to the vendor, observations on the pod and observations in the store.

The drill collects these records and `packs.drill.control.clauses` judges them. Times are UTC epoch seconds by the
vendor's clock; amounts are micro-USD.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from infra.records import Offer, Pod

WORKER, STRAY, TIMED, SPOT = "worker", "stray", "timed", "spot"
LEAVERS = ("leaver", "leaver-2")  # machines for the self-delete requests


@dataclass(frozen=True, kw_only=True)
class VerbCall:
    """A call of a provider verb with result or error."""

    verb: str  # catalog, create, arm, find, list, delete, billed, reach
    began_at: float
    ended_at: float
    word: str = ""  # argument: a pod id; for create the token, for catalog the offer id
    pods: tuple[Pod, ...] = ()  # pods returned by create, find and list; for list only pods of the drill
    micro_usd: int | None = None  # catalog: price of the offer; billed: amount of the bill
    disk_micro_usd: int | None = None  # disk part of the bill; None if the bill does not show it
    time_s: float | None = None  # create: requested time limit; arm: requested end
    spend_micro_usd: int | None = None
    error: str = ""  # exception type and message; "" on success


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """Documented abilities of a vendor, with the clock tolerances of the drill."""

    name: str
    time_limit: bool
    time_grain_s: float
    spend_limit: bool
    tells_limits: bool
    resets_timer: bool
    start_timer: bool
    spot: bool
    tells_bills: bool
    has_ssh: bool  # True if SSH reaches the machine, which exposes the host key
    self_deletes: tuple[str, ...]  # self-delete requests, named by `call_name`
    self_terminate: str
    slack_s: float  # measurable error of the vendor's timers, in seconds
    late_s: float  # observation delay, in seconds: replies in transit, process start-up in a rehearsal
    clock_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A pod of the drill. `name` is the purpose: WORKER, STRAY, TIMED, SPOT or one of LEAVERS."""

    name: str
    token: str
    offer: Offer
    run: str = ""
    pod_id: str = ""
    ledger_micro_usd: int = 0  # cost recorded in the journal
    is_gone: bool = False  # True if the journal has proof of deletion
    failure: str = ""  # reason for an early end

    @property
    def rate(self) -> int:
        """Return the price of the offer in micro-USD per hour."""
        return self.offer.micro_usd_per_hour


@dataclass(frozen=True, kw_only=True)
class DrillObservations:
    """Observations on the worker and in the store.

    Each field is None before the observation, "" on success and a description of the problem otherwise.
    """

    machine: str | None = None  # the pod has the GPUs of the offer
    host_key: str | None = None  # a second connection sees the same host key
    guard: str | None = None  # the guard is alive and armed with the expected token and limits
    log: str | None = None  # the log is in the store
    checkpoint: str | None = None  # the checkpoint is in the store and complete


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A GPU slice (MIG) on offer. `whole` is the whole GPU matched by the slice's catalog name, or ""."""

    kind: str
    whole: str


@dataclass(frozen=True, kw_only=True)
class SelfDelete:
    """Result of a self-delete request. `answer` is the HTTP status, or a description if no status arrived."""

    name: str
    answer: str
    is_gone: bool


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All observations of a drill."""

    vendor: Vendor
    calls: tuple[VerbCall, ...] = ()
    trials: tuple[Trial, ...] = ()
    ground: DrillObservations = field(default_factory=DrillObservations)
    creates: int | None = None  # create requests sent for the stray trial
    throttled: int = 0  # create requests rejected with status 429
    unknown_refusals: tuple[str, ...] = ()  # status and message of refusals missing from Slipway's table
    spot_in_v2: bool | None = None  # True if REST v2 alone lists the spot machine; None if untested
    slices: tuple[Slice, ...] = ()
    self_deletes: tuple[SelfDelete, ...] = ()

    def trial(self, name: str) -> Trial | None:
        return next((one for one in self.trials if one.name == name), None)

    def calls_of(self, verb: str, word: str = "") -> list[VerbCall]:
        """Return the calls of a verb, limited to an id or token if `word` is not empty."""
        return [one for one in self.calls if one.verb == verb and word in ("", one.word)]

    def place(self, call: VerbCall) -> int:
        """Return the index of a call in `calls`."""
        return next(number for number, one in enumerate(self.calls) if one is call)

    def create(self, trial: Trial) -> VerbCall | None:
        return next(iter(self.calls_of("create", trial.token)), None)

    def pods_with_limits(self, trial: Trial) -> Iterator[Pod]:
        """Yield the pod of a trial from all find calls, oldest first; listings may omit limits.

        For a vendor with timers that restart at boot, yield only results after the first arm call.
        """
        armed = self.calls_of("arm", trial.pod_id) if self.vendor.resets_timer else []
        since = self.place(armed[0]) if armed else -1
        for one in self.calls_of("find", trial.pod_id) if trial.pod_id else ():
            yield from (pod for pod in one.pods if is_of(pod, trial) and self.place(one) > since)

    def rows(self, trial: Trial) -> Iterator[Pod]:
        """Yield the pod of a trial from all find and list calls, oldest first."""
        for one in self.calls:
            if one.verb in ("find", "list"):
                yield from (pod for pod in one.pods if is_of(pod, trial))


def is_of(pod: Pod, trial: Trial) -> bool:
    """Return whether a listed pod belongs to the trial, by pod id or by token."""
    return bool(pod.pod_id) and pod.pod_id == trial.pod_id or pod.token == trial.token
