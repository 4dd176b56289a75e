"""Views of costs: live pods with their ends, past spending and current offers."""

import time
from typing import Any

from flows.reading import spending
from infra.errors import MissingKey
from infra.ledger.spend import PodCost
from infra.market import catalogue
from infra.providers import offers as market
from infra.records import Offer, Request
from infra.units import dollars
from packs.page.views.page_context import CachedValue, PageContext
from packs.page.views.sections.ask import View, ViewQuery
from packs.page.views.sections.runs import row

OFFERS_S = 60.0  # cache age of offers; each look queries every vendor
BILLS_S = 300.0
MOST_OFFERS = 500


def listed(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the live pods, their cost per hour, and the owner of each pod."""
    now = time.time()
    with context.journal() as journal:
        owners = {op.run: {"owner_kind": op.owner_kind, "owner": op.owner} for op in journal.ops(live=True)}
    views = [view for view in context.runs() if view.run in owners]
    rows = [{**row(view, now), **owners[view.run]} for view in views]
    total = sum(view.micro_usd_per_hour for view in views)
    return {"pods": rows, "usd_per_hour": dollars(total), "command": "inv status"}


def money(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the ledger by day, run, vendor and month, with quoted and billed amounts and the spend cap."""
    found = context.cached(("spending",), lambda: CachedValue(lambda: _spent(context))).get()
    now, lines = time.time(), found.lines
    paid = [one for one in lines if one.quoted_micro_usd or one.billed_micro_usd]
    final = [one for one in paid if one.is_final]  # A bill of a live pod lags behind price times time.
    vendors: dict[str, int] = {}
    for one in paid:
        vendors[one.provider] = vendors.get(one.provider, 0) + one.micro_usd
    live = [view for view in context.runs() if view.ended_at is None and view.micro_usd_per_hour]
    most = [_most(view.micro_usd_per_hour, view.limit_in_s) for view in live]
    cap = context.settings.spend_cap_usd
    return {
        "days": {day: dollars(amount) for day, amount in spending.by_day(paid, now).items()},
        "runs": {name: dollars(amount) for name, amount in spending.by_run(paid).items()},
        "vendors": {name: dollars(amount) for name, amount in vendors.items()},
        "months": {name: dollars(amount) for name, amount in found.months.items() if amount},
        "pods": [_line(one) for one in paid[::-1]],
        "sums": {
            "spent_usd": dollars(sum(one.micro_usd for one in paid)),
            "quoted_usd": dollars(sum(one.quoted_micro_usd for one in final)),
            "billed_usd": dollars(sum(one.billed_micro_usd or 0 for one in final)),
            "usd_per_hour": dollars(sum(view.micro_usd_per_hour for view in live)),
            "most_usd": None if None in most else dollars(sum(one or 0 for one in most)),
            "cap_usd": f"{cap:.2f}" if cap else None,
        },
        "free": len(lines) - len(paid),
        "problems": found.problems,
        "command": "inv cost",
    }


def offered(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the current offers, cheapest first, from the cache."""
    return context.cached(("offers",), lambda: CachedValue(lambda: (_offers(context), OFFERS_S))).get()


PODS, COST, OFFERS = View(listed), View(money), View(offered, every_s=5.0)


def _spent(context: PageContext) -> tuple[spending.Spending, float]:
    with context.journal() as journal:
        asks = context.cached(("bills",), lambda: CachedValue(lambda: (object(), BILLS_S)))
        before, now = context.cache.get("asked for bills"), asks.get()
        context.cache["asked for bills"] = now
        return spending.spent(journal, context.settings, asks=before is not now), 0.7


def _most(rate: int, left_s: float | None) -> int | None:
    """Return the maximum further cost of a pod until its time limit, in micro-USD; None without a limit."""
    return None if left_s is None else round(rate * left_s / 3600)


def _line(one: PodCost) -> dict[str, Any]:
    return {
        "run": one.run,
        "provider": one.provider,
        "id": one.pod_id,
        "began_at": one.began_at,
        "ended_at": one.ended_at,
        "elapsed_s": round(one.elapsed_s),
        "usd_per_hour": dollars(one.micro_usd_per_hour),
        "quoted_usd": dollars(one.quoted_micro_usd),
        "billed_usd": None if one.billed_micro_usd is None else dollars(one.billed_micro_usd),
        "is_final": one.is_final,
        "usd": dollars(one.micro_usd),
    }


def _offers(context: PageContext) -> dict[str, Any]:
    command = {"command": "inv offers"}
    try:
        found = market.survey(market.sources(context.settings), Request(run="new"))
    except MissingKey as error:
        priced = catalogue.read(catalogue.file_beside(context.settings.state_file))
        priced.sort(key=lambda one: one.offer.micro_usd_per_hour)
        rows = [{**_offer(one.offer), "mark": one.label} for one in priced[:MOST_OFFERS]]
        why = f"Earlier prices, each with a date; {error}"
        return {"offers": rows, "count": len(priced), "silent": [], "why": why, **command}
    silent = [f"{one.provider}: {one.error}" for one in found.failures]
    rows = [_offer(one) for one in found.offers[:MOST_OFFERS]]
    return {"offers": rows, "count": len(found.offers), "silent": silent, "seen_at": round(time.time()), **command}


def _offer(one: Offer) -> dict[str, Any]:
    return {
        "provider": one.provider,
        "id": one.offer_id,
        "gpu": one.gpu,
        "num_gpus": one.num_gpus,
        "gpu_memory_bytes": one.gpu_memory_bytes or None,
        "cpus": one.cpus or None,
        "memory_bytes": one.memory_bytes or None,
        "disk_bytes": one.disk_bytes or None,
        "where": ", ".join(filter(None, (one.city, one.region, one.country))),
        "usd_per_hour": dollars(one.micro_usd_per_hour),
        "usd_per_gpu_hour": dollars(one.micro_usd_per_hour // one.num_gpus) if one.num_gpus else None,
        "spot": one.spot,
    }
