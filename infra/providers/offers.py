"""The offers of all sources in one table: every vendor with a key, and the user's own machines, asked in parallel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from infra.errors import AuthError, MissingKey, NoOffer, SlipwayError, UsageError
from infra.market import gpus
from infra.market.filters import explain, satisfying
from infra.providers import Market, by_name
from infra.providers.by_name import open_known, open_market, open_own
from infra.records import Offer, Request
from infra.settings import VENDORS, Settings, inventory
from store import packs
from store.extensions import names

ASK_S = 45.0


@dataclass(frozen=True)
class ProviderFailure:
    """A provider that failed to answer with offers, and the error."""

    provider: str
    error: SlipwayError


@dataclass(frozen=True)
class Survey:
    """The result of a survey: `offers` satisfy the request, cheapest first; `considered` are all offers received."""

    offers: tuple[Offer, ...]
    considered: tuple[Offer, ...]
    failures: tuple[ProviderFailure, ...]


@dataclass(frozen=True)
class OfferSource:
    """A source of offers: a market, or the user's own machines."""

    name: str
    ask: Callable[[Request], list[Offer]]


def accounts(settings: Settings, only: str = "") -> tuple[list[Market], list[str]]:
    """Open the accounts of all vendors with a key and of all extensions, or just `only`.

    Also return messages about the accounts that cannot be opened. Raise UsageError for an unknown `only`.
    """
    if only and only not in (*VENDORS, *names(settings.extensions)):
        raise UsageError(
            f"provider {only!r} has no accounts; known: {', '.join(VENDORS)}{by_name.extensions_named(settings)}"
        )
    opened: list[Market] = []
    own, problems = ([only] if only not in VENDORS else [], list[str]()) if only else by_name.own_providers(settings)
    for name in own:
        try:
            if one := open_own(name, settings):
                opened.append(one)
        except SlipwayError as error:
            problems.append(f"{name}: {str(error).removeprefix(f'{name}: ')}")
    for name, key in VENDORS.items():
        if name == only or (not only and getattr(settings, key)):
            try:
                opened.append(open_market(name, settings))
            except SlipwayError as error:
                problems.append(f"{name}: {error}")
    return opened, problems


def sources(settings: Settings, only: str = "") -> list[OfferSource]:
    """Return every vendor with a key, every provider of an extension and the own machines, if any; or just `only`.

    Raise MissingKey, with the variables to set, without any source. Raise UsageError for an `only` without offers.
    """
    with_inventory = [name for name, one in packs.providers().items() if one.inventory]
    listed = (*VENDORS, "ssh", *with_inventory)
    found = []
    if only not in ("", *listed):
        if own := open_own(only, settings):
            return [OfferSource(only, own.catalog)]
        why = (
            packs.missing_pack_message("providers", only)
            or f"known: {', '.join(listed)}{by_name.extensions_named(settings)}"
        )
        raise UsageError(f"provider {only!r} has no offers; {why}")
    for name in by_name.own_providers(settings)[0] if not only else ():
        found.append(OfferSource(name, partial(_catalog, name, settings)))
    for name, key in VENDORS.items():
        if name == only or (not only and getattr(settings, key)):
            found.append(OfferSource(name, partial(_vendors, name, settings)))
    if only == "ssh" or (not only and settings.pools.exists()):
        found.append(OfferSource("ssh", partial(_own, "ssh", settings)))
    for name in with_inventory:
        if only == name or (not only and inventory(name, settings)):
            found.append(OfferSource(name, partial(_own, name, settings)))
    if not found:
        keys = ", ".join(key.upper() for key in VENDORS.values())
        raise MissingKey(
            f"no provider is configured: set one of {keys} (inv init), list own machines in {settings.pools}, or "
            "look at a simulated market: inv offers --rehearse"
        )
    return found


def survey(asked: Sequence[OfferSource], request: Request, deadline_s: float = ASK_S) -> Survey:
    """Ask all sources at the same time; a failed or late source does not delay the other sources."""
    from infra.machines.host_memory import map_parallel  # a launch on this machine asks no source

    answers = map_parallel(lambda source: source.ask(request), asked, deadline_s)
    silent, found = [], []
    for source, answer in zip(asked, answers, strict=True):
        if isinstance(answer, SlipwayError):
            silent.append(ProviderFailure(source.name, answer))
        else:
            found += answer
    return Survey(tuple(satisfying(request, found)), tuple(found), tuple(silent))


def require(found: Survey, request: Request) -> Survey:
    """Return `found` itself if an offer matches.

    Raise NoOffer with the reasons and alternatives if no offer matches. If no source answered, raise AuthError when
    every key was refused, else SlipwayError.
    """
    if found.offers:
        return found
    said = "\n".join(f"{one.provider}: {one.error}" for one in found.failures)
    failed = [one.error for one in found.failures if not isinstance(one.error, NoOffer)]
    if failed and not found.considered:
        kind = AuthError if all(isinstance(error, AuthError) for error in failed) else SlipwayError
        raise kind(f"no vendor answered with offers\n{said}")
    raise NoOffer("\n".join(filter(None, (explain(request, found.considered), said))))


def _vendors(name: str, settings: Settings, request: Request) -> list[Offer]:
    """Return the offers of a vendor; open the account only now, so that an error becomes the answer."""
    return open_market(name, settings).catalog(request)


def _catalog(name: str, settings: Settings, request: Request) -> list[Offer]:
    """Return the offers of an extension's provider, opened only now, so that an error becomes the answer."""
    own = open_own(name, settings)
    return own.catalog(request) if own else []


def _own(name: str, settings: Settings, request: Request) -> list[Offer]:
    """Return all free machines of an inventory; read the inventory only now."""
    pools = open_known(name, settings)
    offers = pools.offers(Request(run=request.run, provider=pools.name))
    return [replace(offer, gpu=gpus.name(offer.gpu)) for offer in offers]
