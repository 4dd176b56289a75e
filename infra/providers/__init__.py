"""The interface of every provider: six verbs, with one module per vendor.

A verb asks the provider and returns; the caller waits for conditions, ranks and prints. Reads are retried within a
deadline after a lost answer; requests to rent or end are sent once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from infra.agent.job import Call, Limits
from infra.errors import SlipwayError
from infra.records import Account, Offer, Pod, Request
from infra.transport.protocol import Transport

LAG_S = 120.0  # seconds for which a vendor may omit a new pod from listings and lookups by id


class PartialListing(SlipwayError):
    """Some machines or clusters of a provider did not answer; `pods` are the pods of all others."""

    def __init__(self, words: str, pods: Sequence[Pod]) -> None:
        super().__init__(words)
        self.pods = tuple(pods)


class SpotUnlisted(PartialListing):
    """Only spot pods may be missing: the API for spot pods does not answer."""


class Provider(Protocol):
    """The base class of all providers, direct or through `Market`; optional members have defaults here."""

    @property
    def name(self) -> str:
        """Return the name, as in `--provider` and in the journal."""

    @property
    def settle_s(self) -> float:
        """Return the seconds after a lost answer for which a pod may still appear in a listing, by our clock."""

    @property
    def is_here(self) -> bool:
        """Return whether the pods run on this machine."""

    @property
    def is_rented(self) -> bool:
        """Return whether the pods cost money until ended."""

    @property
    def restarts_runs(self) -> bool:
        """Return whether an engine restarts a run by itself after the loss of a machine: this side only observes.

        The engine also decides when and where the run works, so that the machine is unknown beforehand.
        """
        return False

    @property
    def is_ephemeral(self) -> bool:
        """Return whether machines may disappear with their disks, so that runs upload results while they work."""
        return self.is_rented

    @property
    def is_run_engine(self) -> bool:
        """Return whether the provider is an engine (`infra.runs.engine`), with runs submitted whole and not kept here.

        Only the engine reaches the machines. The engine recovers runs by itself, and still reports on runs after the
        end.
        """
        return False

    @property
    def pod_store(self) -> str:
        """Return the artifact store as named by the pod's steps, from their code folder; "" = the local store."""

    def account(self) -> Account:
        """Return the account: owner and balance. Raise AuthError for a missing or refused key."""

    def with_gpu_count(self, request: Request) -> Request:
        """Return a request without a number of GPUs as a request for a whole machine, if a number is needed."""
        return request

    def named_places(self, request: Request) -> tuple[str, ...]:
        """Return the machines named by a request, regardless of capacity and use; send no request."""
        return ("",)

    def predict_offer(self, request: Request) -> Offer | None:
        """Return the probable machine for a request, as far as known without asking a machine; None if unknown."""
        return None

    def offers(self, request: Request) -> list[Offer]:
        """Return the current offers for `request`, in no order, perhaps none."""

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent `offer`, marked with `token`; return at once, perhaps without an address.

        The same request arms the vendor's own limits, if supported. A second call rents a second pod. Raise Ambiguous
        when the pod may exist: look with find() before a new attempt. Any other SlipwayError is a definite refusal, and
        no pod was rented: after NoOffer, the next offer may succeed; after OutOfMoney or AuthError, no offer will.
        """

    def find(self, pod: str) -> Pod | None:
        """Return the pod with this id or token; None only when the vendor denies the pod."""

    def list(self) -> "list[Pod]":
        """Return all pods, ours or not, from a complete listing. Raise SlipwayError for an incomplete listing.

        A barely readable row still counts as a pod: see `Pod.odd`.
        """

    def delete(self, pod_id: str) -> None:
        """End the pod with this id; the id suffices. A second call is safe: a pod already gone counts as ended.

        A return is no proof of absence; find() is. Raise SlipwayError when the pod may still exist.
        """

    def reach(self, pod: Pod) -> Transport:
        """Return the transport to a pod, not connected yet."""


TIMER_GRAIN_S = {"lium": 3600.0, "shadeform": 1.0}  # seconds: unit of the vendor's timer, for vendors with a timer
Vendors = Callable[[str], Provider]  # opens the provider with this name; raises UsageError for an unusable provider


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """The features of a vendor beyond the six verbs."""

    time_limit: bool = False  # ends a pod at a time passed to create()
    time_grain_s: float = 1.0  # the time is rounded up to this unit
    resets_timer: bool = False  # a boot replaces the time: `arm` sets the time again
    spend_limit: bool = False  # ends a pod at an amount passed to create()
    start_timer: bool = False  # containers start with a dead-man timer, which sends the pod's self-termination requests
    tells_limits: bool = False  # find() shows both limits as armed
    tells_bills: bool = True  # billed() returns the cost of a pod
    spot: bool = False
    lists_spot: bool = True  # the API for all other machines also lists spot machines
    stop: bool = False  # keeps the disk, and bills the disk
    # End of an unsupervised pod: by a key of the pod (pod_credential), by the vendor's timer (native), by the
    # controller of an engine, which returns the machines after the job (engine), or none.
    self_terminate: str = "none"
    volumes: tuple[str, ...] = ()  # shell patterns of the volume's mount points in a pod; () = no volumes
    images: bool = False  # a pod is a container, which boots an image of the user
    volumes_apart: bool = False  # the vendor bills volumes by use, apart from the pod, and reports no price
    settle_s: float = 600.0  # like Provider.settle_s, by the vendor's clock
    drilled: frozenset[str] = frozenset()  # clauses kept at this API in a recent drill of this account


class Market(Provider, Protocol):
    """A provider that rents out machines for money."""

    @property
    def can(self) -> Abilities:
        """Return the features at any API: see `infra.providers.promises`."""

    @property
    def documented(self) -> Abilities:
        """Return the features as documented by the vendor, regardless of drills."""
        return self.can

    def can_at(self, api: str) -> Abilities:
        """Return the features at one API, named as by `promises.api_of`."""
        return self.can

    @property
    def clock_scale(self) -> float:
        """Return the speed of the vendor's clock relative to ours: 1, except in a rehearsal."""

    @property
    def self_terminate_calls(self) -> tuple[Call, ...]:
        """Return the requests with which a pod deletes itself, using the pod's own key; () = not supported."""
        return ()

    @property
    def self_end_key(self) -> str:
        """Return the key for `self_end`; "" if pods have their own keys, or without a key to hand out."""
        return ""

    def self_end(self, pod_id: str) -> tuple[Call, ...]:
        """Return the requests with which a pod deletes itself, using `self_end_key`; () = not supported.

        `infra.agent.job.SELF_END_KEY` is the placeholder for the key.
        """
        return ()

    @property
    def uses_self_end(self) -> bool:
        """Return whether pods delete themselves by `self_end` alone."""
        return self.can.self_terminate == "native" and bool(self.self_end("pod"))

    def check_self_end(self) -> str:
        """Return a warning before `self_end_key` goes to a pod; "" = none.

        Raise UsageError for a missing key, and for a key with more rights than required.
        """
        return ""

    def arm_timer(self, pod_id: str, ends_at: float) -> None:
        """Set the time, by the vendor's clock, at which the vendor ends a pod, if a boot resets the time."""
        return None

    def delete_local_files(self, token: str) -> None:
        """Remove the local SSH key of a pod after the proof of absence."""

    def catalog(self, request: Request) -> "list[Offer]":
        """Return all current offers, including offers unsuitable for `request`.

        `request` gives the numbers of GPUs, and whether to ask for spot.
        """

    def now(self) -> float:
        """Return UTC epoch seconds by the vendor's clock, as of the last answer; by our clock before any answer.

        Send no request.
        """

    def latest_now(self) -> float:
        """Return the latest possible time by the vendor's clock, for costs: answers take time to arrive."""
        return self.now()

    @property
    def skew_problem(self) -> str:
        """Return why the vendor's timer cannot be trusted: the clocks are far apart; "" for close clocks."""

    def lists_spot_pod(self, pod_id: str) -> bool | None:
        """Return whether the API for all other machines lists this spot pod; None if one API lists all pods."""
        return None

    def billed(self, pod_id: str) -> int | None:
        """Return the cost of a pod in micro-USD as reported by the vendor; None = not reported."""


def list_pods(provider: Provider, spot: bool) -> list[Pod]:
    """Return the pods of a complete listing; without `spot`, spot pods may be missing."""
    try:
        return provider.list()
    except SpotUnlisted as error:
        if spot:
            raise
        return list(error.pods)


def find_pod(provider: Provider, pod: str, spot: bool) -> Pod | None:
    """Return the result of `find`. `spot`: the pod is a spot pod, which only the API for spot pods can deny.

    Without `spot`, use the partial listing if the API for spot pods does not answer.
    """
    try:
        return provider.find(pod)
    except SpotUnlisted as error:
        if spot:
            raise
        return next((one for one in error.pods if pod in (one.pod_id, one.token)), None)


def market(provider: Provider) -> "Market | None":
    """Return the provider itself if the pods cost money, else None."""
    return cast(Market, provider) if provider.is_rented else None


def is_examined(provider: Provider) -> bool:
    """Return whether the machines of a provider are examined before work: known ones that were not examined before."""
    # A held pod was examined when the pod was rented; an engine chooses the machine later.
    was_before = provider.is_here or provider.is_ephemeral and not provider.is_rented
    return not was_before and not provider.restarts_runs


def clock_scale(provider: Provider) -> float:
    """Return the speed, relative to ours, of the clock for billing and limits of the pods."""
    found = market(provider)
    return found.clock_scale if found else 1.0


def self_terminate_calls(provider: Provider) -> tuple[Call, ...]:
    """Return the calls with which a pod ends itself; () if unsupported or free of charge."""
    found = market(provider)
    return found.self_terminate_calls if found else ()
