"""The interface of every provider: six verbs, one file per vendor.

A verb asks and returns; waiting for something to become true, ranking and printing are the caller's. What only reads is
retried within a deadline when its answer was lost; what rents or ends is asked once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from infra.agent.job import Call, Limits
from infra.errors import SlipwayError
from infra.records import Account, Offer, Pod, Request
from infra.transport.protocol import Transport

LAG_S = 120.0  # time for which a vendor may not show, in a listing or asked for its id, what it has just created


class PartialListing(SlipwayError):
    """Some machines or clusters of a provider have not answered: `pods` are those of the others."""

    def __init__(self, words: str, pods: Sequence[Pod]) -> None:
        super().__init__(words)
        self.pods = tuple(pods)


class SpotUnlisted(PartialListing):
    """Only pods that were rented as spot may be missing: the API that shows them does not answer."""


class Provider(Protocol):
    """A provider inherits from this, or from `Market`: what is not asked of every one has its usual answer there."""

    @property
    def name(self) -> str:
        """Return its name, as `--provider` and the journal spell it."""

    @property
    def settle_s(self) -> float:
        """Return how long after a lost answer a pod may still turn up in a listing, by our clock."""

    @property
    def is_here(self) -> bool:
        """Return whether its pods are on this machine."""

    @property
    def is_rented(self) -> bool:
        """Return whether its pods cost money until they are ended."""

    @property
    def recovers(self) -> bool:
        """Return whether its engine restarts a run by itself when the machine is taken away: this side only observes.

        It also decides when and where the run works, so that nothing of a machine is known before.
        """
        return False

    @property
    def fleeting(self) -> bool:
        """Return whether its machines may disappear with their disks, so that results go to the store meanwhile."""
        return self.is_rented

    @property
    def keeps_runs(self) -> bool:
        """Return whether it is an engine (`infra.runs.engine`): a run is submitted whole, and no process here keeps it.

        Only the engine reaches its machines. It recovers runs by itself, and still tells their reports once they ended.
        """
        return False

    @property
    def pod_store(self) -> str:
        """Return the artifact store as the pod's steps name it, from their code folder; "" = the local one."""

    def account(self) -> Account:
        """Return the account: its owner and its balance. AuthError: the key is missing or refused."""

    def whole(self, request: Request) -> Request:
        """Return a request without a number of GPUs as one for a whole machine, where that takes a number."""
        return request

    def places(self, request: Request) -> tuple[str, ...]:
        """Return the machines that a request names, whatever they have and whoever has them; asks nobody."""
        return ("",)

    def likely(self, request: Request) -> Offer | None:
        """Return the machine that a request would get, as far as that is known before any is asked; None elsewhere."""
        return None

    def offers(self, request: Request) -> list[Offer]:
        """Return the offers now that satisfy `request`; in no order, perhaps none."""

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent `offer`, marked with `token`; returns at once, perhaps before there is an address.

        The vendor's own ends are armed in the same request, where it has them. Called twice, it rents twice.
        Ambiguous: the pod may exist; look with find() before asking again. Any other SlipwayError is a definite
        no: nothing was rented. NoOffer: the next offer may do; OutOfMoney, AuthError: none will.
        """

    def find(self, pod: str) -> Pod | None:
        """Return the pod with that id or token; None only when the vendor says that there is none."""

    def list(self) -> "list[Pod]":
        """Return all pods, ours or not, from a complete listing; an incomplete one raises SlipwayError.

        A row of which little can be read is one all the same: see `Pod.odd`.
        """

    def delete(self, pod_id: str) -> None:
        """End it, knowing no more than its id. A pod already gone counts as ended, so calling twice is safe.

        Returning is no proof of absence: find() is. SlipwayError: it may be there still.
        """

    def reach(self, pod: Pod) -> Transport:
        """Return the transport to that pod, without a connection yet."""


TIMER_GRAIN_S = {"lium": 3600.0, "shadeform": 1.0}  # vendors with a timer of their own: the unit that it takes
Vendors = Callable[[str], Provider]  # the provider of that name; raises UsageError for one that cannot be used


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """The features of a vendor beyond the six verbs."""

    time_limit: bool = False  # ends a pod at a time given to create()
    time_grain_s: float = 1.0  # unit to which that time is rounded up
    resets_timer: bool = False  # a boot replaces that time: `arm` sets it again
    spend_limit: bool = False  # ends a pod at an amount given to create()
    start_timer: bool = False  # its containers start with a dead-man timer, which asks as a pod's self-termination does
    tells_limits: bool = False  # find() shows both as they are armed
    tells_bills: bool = True  # billed() tells what a pod has cost
    spot: bool = False
    lists_spot: bool = True  # the API that lists all other machines lists those rented as spot, too
    stop: bool = False  # keeps the disk, and bills it
    # What ends a pod that nobody looks after: a key of its own (pod_credential), the vendor's timer (native), the
    # controller of an engine that gives its machines back when the job is over (engine), none.
    self_terminate: str = "none"
    volumes: tuple[str, ...] = ()  # shell patterns of where a pod finds its volume; () = it has none
    volumes_apart: bool = False  # the vendor bills volumes by use, apart from the pod, and tells no price of them
    settle_s: float = 600.0  # like Provider.settle_s, by the vendor's clock
    drilled: frozenset[str] = frozenset()  # clauses that a recent drill of this account found kept at this API


class Market(Provider, Protocol):
    """A provider that rents out machines for money."""

    @property
    def can(self) -> Abilities:
        """Return its features at any of its APIs: see `infra.providers.promises.abilities`."""

    @property
    def documented(self) -> Abilities:
        """Return its features as its documentation has them, whatever a drill has found."""
        return self.can

    def can_at(self, api: str) -> Abilities:
        """Return its features at one API, as `abilities.api_of` names them."""
        return self.can

    @property
    def clock_scale(self) -> float:
        """Return the speed of its clock relative to ours: 1, except in a rehearsal."""

    @property
    def farewell(self) -> tuple[Call, ...]:
        """Return the requests by which one of its pods deletes itself, with a key of its own; () = it cannot."""
        return ()

    @property
    def self_end_key(self) -> str:
        """Return the key by which `self_end` asks; "" where pods have their own, or there is none to hand out."""
        return ""

    def self_end(self, pod_id: str) -> tuple[Call, ...]:
        """Return the requests by which the pod with that id deletes itself with `self_end_key`; () = it cannot.

        `infra.agent.job.SELF_END_KEY` stands for the key.
        """
        return ()

    @property
    def takes_self_end(self) -> bool:
        """Return whether its pods delete themselves by `self_end` alone."""
        return self.can.self_terminate == "native" and bool(self.self_end("pod"))

    def check_self_end(self) -> str:
        """Return a warning before `self_end_key` goes to a pod; "" = none.

        Raises UsageError when it is missing, or may do more than it must.
        """
        return ""

    def arm(self, pod_id: str, ends_at: float) -> None:
        """Set the time, by the vendor's clock, at which the vendor ends a pod, where its boot resets that time."""
        return None

    def forget(self, token: str) -> None:
        """Remove what was kept here to reach a pod that is proven gone: its SSH key."""

    def catalog(self, request: Request) -> "list[Offer]":
        """Return all offers now, also those that do not satisfy `request`.

        `request` says which counts, and whether spot.
        """

    def now(self) -> float:
        """Return UTC epoch seconds by the vendor's clock, as its last answer showed it; ours before that.

        Asks nobody.
        """

    @property
    def skew(self) -> str:
        """Return why its timer cannot be trusted: its clock and ours are far apart; "" while they are not."""

    def shows_spot(self, pod_id: str) -> bool | None:
        """Return whether the API that lists all other machines lists this spot one; None where one API lists all."""
        return None

    def billed(self, pod_id: str) -> int | None:
        """Return the micro-dollars that a pod has cost, as the vendor says; None = it does not tell."""


def listed(provider: Provider, spot: bool) -> list[Pod]:
    """Return the pods of a complete listing; without `spot`, those rented as spot may be missing."""
    try:
        return provider.list()
    except SpotUnlisted as error:
        if spot:
            raise
        return list(error.pods)


def look_up(provider: Provider, pod: str, spot: bool) -> Pod | None:
    """Return what `find` does. `spot`: it was rented as spot, so that only the API which shows those can deny it."""
    try:
        return provider.find(pod)
    except SpotUnlisted as error:
        if spot:
            raise
        return next((one for one in error.pods if pod in (one.pod_id, one.token)), None)


def market(provider: Provider) -> "Market | None":
    """Return the provider itself when it rents out for money."""
    return cast(Market, provider) if provider.is_rented else None


def is_examined(provider: Provider) -> bool:
    """Return whether the machines of a provider are examined before work: known ones that were not examined before."""
    # A held pod was examined when the pod was rented; an engine chooses the machine later.
    was_before = provider.is_here or provider.fleeting and not provider.is_rented
    return not was_before and not provider.recovers


def clock_scale(provider: Provider) -> float:
    """Return the speed, relative to ours, of the clock by which its pods are billed and limited."""
    found = market(provider)
    return found.clock_scale if found else 1.0


def farewell(provider: Provider) -> tuple[Call, ...]:
    """Return the calls by which a pod of it ends itself; () when it cannot, or costs nothing."""
    found = market(provider)
    return found.farewell if found else ()
