"""The offers of all sources in one table: every vendor whose key is set, and the own machines, asked in parallel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from infra.errors import AuthError, MissingKey, NoOffer, SlipwayError, UsageError
from infra.machines.host_memory import at_once
from infra.market import gpus
from infra.market.filters import explain, satisfying
from infra.providers import Market, Provider
from infra.records import Offer, Request
from infra.settings import VENDORS, Settings

ASK_S = 45.0


@dataclass(frozen=True)
class Silence:
    """A provider that has not answered what it offers, and why."""

    provider: str
    error: SlipwayError


@dataclass(frozen=True)
class Survey:
    """The result of a survey: `offers` satisfy the request, cheapest first; `considered` is all that there was."""

    offers: tuple[Offer, ...]
    considered: tuple[Offer, ...]
    silent: tuple[Silence, ...]


@dataclass(frozen=True)
class OfferSource:
    """A source of offers: a market, or the own machines."""

    name: str
    ask: Callable[[Request], list[Offer]]


def open_market(name: str, settings: Settings) -> Market:
    """Return the account with that vendor. MissingKey: its key is not set."""
    key = VENDORS[name]
    if not getattr(settings, key):
        raise MissingKey(f"{name}: no key is set; enter {key.upper()}: inv init {name}, or practise without one: "
                         f"inv rehearse --provider {name}")  # fmt: skip
    if name == "runpod":
        from infra.providers.runpod import RunPod

        return RunPod.of(settings)
    if name == "lium":
        from infra.providers.lium import Lium

        return Lium.of(settings)
    from infra.providers.shadeform import Shadeform

    return Shadeform.of(settings)


def accounts(settings: Settings, only: str = "") -> tuple[list[Market], list[str]]:
    """Return every account whose key is set, or just that with `only`; and in words which of them cannot be asked."""
    if only and only not in VENDORS:
        raise UsageError(f"provider {only!r} has no accounts; known: {', '.join(VENDORS)}")
    opened, problems = [], []
    for name, key in VENDORS.items():
        if name == only or (not only and getattr(settings, key)):
            try:
                opened.append(open_market(name, settings))
            except SlipwayError as error:
                problems.append(f"{name}: {error}")
    return opened, problems


def sources(settings: Settings, only: str = "") -> list[OfferSource]:
    """Return every vendor with a key, and the own machines, if there are any; or just `only`.

    MissingKey: there is nobody to ask, and which variables would change that.
    """
    known = (*VENDORS, "ssh", "slurm")
    if only and only not in known:
        raise UsageError(f"provider {only!r} has no offers; known: {', '.join(known)}")
    found = []
    for name, key in VENDORS.items():
        if name == only or (not only and getattr(settings, key)):
            found.append(OfferSource(name, open_market(name, settings).catalog))
    if only == "ssh" or (not only and settings.pools.exists()):
        from infra.providers.ssh import SshPools

        found.append(OfferSource("ssh", lambda request: _own(SshPools.of(settings), request)))
    if only == "slurm" or (not only and settings.clusters.exists()):
        from infra.providers.slurm import SlurmClusters

        found.append(OfferSource("slurm", lambda request: _own(SlurmClusters.of(settings), request)))
    if not found:
        keys = ", ".join(key.upper() for key in VENDORS.values())
        raise MissingKey(f"nobody to ask: set one of {keys} (inv init), list own machines in {settings.pools}, or "
                         "look at a simulated market: inv offers --rehearse")  # fmt: skip
    return found


def survey(asked: Sequence[OfferSource], request: Request, deadline_s: float = ASK_S) -> Survey:
    """Ask all sources at the same time; one that fails, or is late, holds up nobody."""
    answers = at_once(lambda source: source.ask(request), asked, deadline_s)
    silent, found = [], []
    for source, answer in zip(asked, answers, strict=True):
        if isinstance(answer, SlipwayError):
            silent.append(Silence(source.name, answer))
        else:
            found += answer
    return Survey(tuple(satisfying(request, found)), tuple(found), tuple(silent))


def require(found: Survey, request: Request) -> Survey:
    """Return `found` itself when something matches.

    NoOffer: nothing does, why not, and what to ask instead. Where nobody answered: AuthError when every key was
    refused,
    else SlipwayError.
    """
    if found.offers:
        return found
    said = "\n".join(f"{one.provider}: {one.error}" for one in found.silent)
    failed = [one.error for one in found.silent if not isinstance(one.error, NoOffer)]
    if failed and not found.considered:
        kind = AuthError if all(isinstance(error, AuthError) for error in failed) else SlipwayError
        raise kind(f"no vendor answered with offers\n{said}")
    raise NoOffer("\n".join(filter(None, (explain(request, found.considered), said))))


def _own(pools: Provider, request: Request) -> list[Offer]:
    """Return the machines that are free, whatever they are."""
    offers = pools.offers(Request(run=request.run, provider=pools.name))
    return [replace(offer, gpu=gpus.name(offer.gpu)) for offer in offers]
