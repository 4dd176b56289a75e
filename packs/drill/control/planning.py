"""Planning of a vendor drill: machines to rent, offers, limits and the maximum cost.

`plan` takes a vendor and a budget and returns `Planned`; planning rents no machines.
"""

from dataclasses import dataclass, replace

from infra.agent.job import Limits
from infra.errors import NoOffer, UsageError
from infra.ledger.journal import Journal
from infra.market.filters import satisfying
from infra.providers import Market, by_name, market
from infra.providers.by_name import own_providers
from infra.records import Offer, Request
from infra.runs.journal_upkeep import settle
from infra.runs.timing import Say
from infra.selection import choose, preflight, registry
from infra.settings import VENDORS, Settings
from packs.drill.control.evidence import LEAVERS, SPOT, STRAY, TIMED, WORKER
from packs.jobs.control import typed_jobs
from packs.jobs.control.work import JobWork
from store.artifacts.artifacts import Store

# Time limit of each machine, as a backstop: a drill takes minutes. The fraction of an hour lets the drill detect
# vendors that round an exact end to whole hours.
LIMIT_S = 3.5 * 3600.0
EXPECTED_S = 900.0  # typical lifetime of a machine
MOST_OFFERS = 3  # number of offers to try for the worker if other customers take the first
WORK = """python - <<'END'
from slipway import checkpoint
checkpoint.Saver("drill").save({{"word": "{word}"}}, 1)
print("{word}", flush=True)
END
"""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Machines, offers and limits of a planned drill, with the expected and the maximum cost."""

    vendor: Market
    request: Request
    offers: tuple[Offer, ...]
    spot: tuple[Offer, ...]
    """Offers for the spot machine; empty if the vendor has no spot machines or none on offer."""
    trials: tuple[str, ...]
    limits: Limits
    """Limits of each machine."""

    @property
    def expected_micro_usd(self) -> int:
        rates = [
            self.spot[0].micro_usd_per_hour if one == SPOT else self.offers[0].micro_usd_per_hour for one in self.trials
        ]
        return round(EXPECTED_S * sum(rates) / 3600)

    @property
    def most_micro_usd(self) -> int:
        return len(self.trials) * (self.limits.spend_micro_usd or 0)


def plan(
    provider: str, gpu: str, cloud: str, spend_micro_usd: int, journal: Journal, settings: Settings, tell: Say
) -> Planned:
    """Return the planned machines of a drill, without renting.

    Raise UsageError, NoOffer, OutOfMoney or AuthError.
    """
    own, _ = own_providers(settings)
    if provider not in (*VENDORS, *own):
        raise UsageError(
            f"--provider {provider or '(none)'}: a drill tests one vendor: "
            f"{', '.join((*VENDORS, *own))}{'' if own else by_name.extensions_named(settings)}"
        )
    if not settings.rehearsal and "://" not in settings.store:
        raise UsageError(
            f"the drill's log and checkpoint would go to {settings.store}, which a rented machine cannot "
            "reach; give a store off the pod: --store hf://user/repo, s3://bucket/folder or "
            "gs://bucket/folder"
        )
    Store(settings.store).check_writable()
    settle(journal, settings, tell)
    vendor = market(registry.provider(settings, provider))
    assert vendor is not None, provider
    request = Request(run="new", provider=provider, gpu=gpu, cloud=cloud, num_gpus=1)
    offers = choose.payable(choose.find([vendor], request, settings, tell), 1, settings, tell)
    spot = spot_offers(vendor, request)
    trials = trials_of(vendor, bool(spot))
    limits = Limits(time_s=LIMIT_S, spend_micro_usd=spend_micro_usd // len(trials))
    found = Planned(
        vendor=vendor, request=request, offers=tuple(offers[:MOST_OFFERS]), spot=spot, trials=trials, limits=limits
    )
    work = work_of("word").plan(settings, request, vendor, limits)
    lasting = preflight.lasting(work, found.offers, settings)
    return replace(found, offers=tuple(lasting))


def trials_of(vendor: Market, has_spot: bool) -> tuple[str, ...]:
    """Return the trials for a drill of the vendor, in renting order."""
    can = vendor.documented
    is_timed = not can.tells_limits and (can.time_limit or can.start_timer)
    return (
        *([TIMED] if is_timed else []),
        WORKER,
        STRAY,
        *LEAVERS[: len(vendor.self_terminate_calls)],
        *([SPOT] if has_spot else []),
    )


def spot_offers(vendor: Market, request: Request) -> tuple[Offer, ...]:
    """Return the cheapest spot offers, or () without any. Ignore the results of earlier drills."""
    if not vendor.documented.spot:
        return ()
    wanted = replace(request, spot=True)
    try:
        found = satisfying(wanted, vendor.catalog(wanted))
    except NoOffer:
        return ()
    return tuple(sorted(found, key=lambda one: one.micro_usd_per_hour)[:MOST_OFFERS])


def work_of(word: str) -> JobWork:
    """Return the worker's job, which prints the word and saves the word as a checkpoint."""
    return JobWork(file=typed_jobs.of_command(WORK.format(word=word), None), envs=({},), secrets={})
