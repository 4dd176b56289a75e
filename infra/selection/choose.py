"""Selection and order of offers, for commands, for a run's keeper and for the replicas of a service.

Providers and a request become the matching offers, cheapest first. Recently failed offers come last, and offers beyond
the account's balance are dropped. `tell` receives a message for each dropped or demoted offer.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import AuthError, NoOffer, OutOfMoney, SlipwayError
from infra.machines.host_memory import HostMemory, failure_key
from infra.market.filters import format_offer
from infra.providers import Provider, by_name, clock_scale, market, offers
from infra.providers.offers import OfferSource
from infra.providers.promises import api_of
from infra.records import Offer, Request
from infra.selection import registry
from infra.settings import MARKET, VENDORS, Settings
from infra.units import in_usd
from store import packs

DOUBT_S = 6 * 3600.0  # seconds by the vendor's clock during which a failed offer is tried last

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ChosenMachine:
    """The chosen request and the matching offers, in the order to try."""

    request: Request
    offers: tuple[Offer, ...]
    reason: str = ""
    """The deciding fact for this machine as text; "" if the user named the machine."""


Narrow = Callable[[Request, Sequence[Offer]], ChosenMachine]


def as_found(request: Request, found: Sequence[Offer]) -> ChosenMachine:
    """Return all offers of a request unchanged; the default for `narrow`."""
    return ChosenMachine(request=request, offers=tuple(found))


def of_machines(provider: Provider, request: Request) -> list[Offer]:
    """Return a provider's own machines for the request, cheapest first. Raises NoOffer."""
    found = provider.offers(request)
    if not found:
        wanted = f"{request.num_gpus or ''} {request.gpu or 'GPU'}".strip()
        if provider.is_here:
            flags = {"gpu": request.gpu, "num-gpus": request.num_gpus}
            raise NoOffer(
                f"this machine does not have the requested GPUs ({wanted}). {how_to_rent(flags)}; "
                "to list the GPUs of this machine: inv doctor"
            )
        on = f" on each of {request.nodes} nodes" if request.nodes > 1 else ""
        raise NoOffer(f"{provider.name} has no free machine with {wanted}{on}; ask for less, or run: inv doctor")
    return sorted(found, key=lambda offer: offer.micro_usd_per_hour)


def how_to_rent(flags: Mapping[str, Any], command: str = "inv rehearse") -> str:
    """Return how to rent without a key, and how to practise: `command` with these flags; falsy values are left out."""
    keys = ", ".join(key.upper() for key in VENDORS.values())
    words = (f"--{name}" if it is True else f"--{name} {shlex.quote(f'{it}')}" for name, it in flags.items() if it)
    how = f"To rent, set a key ({keys}) in the shell or .env and add --provider {MARKET}"
    return f"{how}; to practise without a key: {' '.join([command, *words])}"


def find(candidates: Sequence[Provider], request: Request, settings: Settings, tell: Tell) -> list[Offer]:
    """Return the matching offers in the order to try; pass errors of silent vendors to `tell`.

    Raises NoOffer with hints about which flags to relax.
    """
    by_name.use_filter(request.machine_filter, settings)
    if not candidates[0].is_rented:
        return of_machines(candidates[0], request)
    asked = [OfferSource(one.name, one.catalog) for one in map(market, candidates) if one]
    found = offers.survey(asked, request)
    for one in found.failures if found.offers else ():
        tell(f"{one.provider}: {' '.join(str(one.error).split())}")
    fit = without_failed_spot(offers.require(found, request).offers, candidates, tell)
    return doubtful_last(fit, settings, clock_scale(candidates[0]), tell)


def without_failed_spot(found: Sequence[Offer], candidates: Sequence[Provider], tell: Tell) -> list[Offer]:
    """Drop the spot offers of vendors with failed spot machines in a drill of this account.

    Raises NoOffer if no offer is left.
    """
    vendors = {one.name: one for one in map(market, candidates) if one}
    failed: dict[str, str] = {}
    for one in found:
        vendor = vendors[one.provider]
        if one.spot and vendor.documented.spot and not vendor.can_at(api_of(one)).spot:
            failed[one.provider] = (
                f"{one.provider}: the spot machines failed in a drill of this account and are left out; repeat the "
                f"drill: {packs.typed(f'inv drill --provider {one.provider}')}"
            )
    kept = [one for one in found if not one.spot or one.provider not in failed]
    if not kept:
        raise NoOffer("; ".join(failed.values()))
    for words in failed.values():
        tell(words)
    return kept


def choose_request(
    candidates: Sequence[Provider],
    requests: Sequence[Request],
    is_ordered: bool,
    settings: Settings,
    tell: Tell,
    narrow: Narrow = as_found,
) -> ChosenMachine:
    """Choose a request and return the offers: the first available if `is_ordered`, else the cheapest.

    `narrow` drops offers too small for the work. Raises NoOffer if no request has offers.
    """
    had: list[ChosenMachine] = []
    missed: list[NoOffer] = []
    for number, request in enumerate(requests):
        asked = [one for one in candidates if request.provider in (MARKET, one.name)] or list(candidates)
        try:
            had.append(narrow(request, find(asked, request, settings, tell)))
        except NoOffer as error:
            missed.append(error)
            if len(requests) > 1:
                tell(
                    f"{number + 1} of {len(requests)} kinds of machine are not available: {str(error).splitlines()[0]}"
                )
        if had and is_ordered:
            break
    if not had:
        raise missed[0]
    return min(had, key=lambda one: 0 if is_ordered else one.offers[0].micro_usd_per_hour)


def find_payable(request: Request, settings: Settings, tell: Tell) -> list[Offer]:
    """Return the matching and affordable offers of the request's provider; used by a run's keeper.

    Raises NoOffer, OutOfMoney.
    """
    candidates = registry.candidates(settings, request.provider)
    return payable(find(candidates, request, settings, tell), request.nodes, settings, tell)


def doubtful_last(found: Sequence[Offer], settings: Settings, scale: float, tell: Tell) -> list[Offer]:
    """Move offers with a recent failure (unavailable, no boot, broken promise) to the end."""
    failed = HostMemory.for_journal(settings.state_file).recent_failures(DOUBT_S / scale)
    doubtful = [one for one in found if failure_key(one) in failed]
    for one in doubtful if len(doubtful) < len(found) else ():
        why = failed[failure_key(one)].failure
        tell(f"tried last: {format_offer(one)}: {' '.join(why.split())[:200]}")
    return [*(one for one in found if one not in doubtful), *doubtful]


def payable(found: Sequence[Offer], nodes: int, settings: Settings, tell: Tell) -> list[Offer]:
    """Return the offers with a first hour within the account's balance; own machines are free.

    Raises OutOfMoney, or NoOffer if vendors did not answer and a retry may help.
    """
    unable: dict[str, str] = {}
    is_silent = True
    for name in dict.fromkeys(one.provider for one in found):
        provider = registry.provider(settings, name)
        if not provider.is_rented:
            continue
        try:
            balance = provider.account().balance_micro_usd
        except SlipwayError as error:
            unable[name] = str(error)
            is_silent &= not isinstance(error, AuthError)
            continue
        # Vendors require a balance for at least an hour.
        need = nodes * min(one.micro_usd_per_hour for one in found if one.provider == name)
        if balance is not None and balance < need:
            unable[name] = f"{name}: the balance is {in_usd(balance)}; an hour costs {in_usd(need)}"
            is_silent = False
    for said in unable.values():
        tell(said)
    left = [one for one in found if one.provider not in unable]
    if not left:
        said = f"no vendor would rent the machine to this account: {'; '.join(unable.values())}"
        raise NoOffer(said) if is_silent else OutOfMoney(said)
    return left
