"""The command `inv cost`: the ledger of past costs, and estimates for future work."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flows.reading import cost_views, quotes, spending
from flows.reading.quotes import ESTIMATES, Quote
from flows.runs import work_kinds
from infra.errors import NoOffer, UsageError
from infra.flags import Typed, flag, flags_of, nondefault_flags
from infra.ledger.spend import PodCost
from infra.market import gpus
from infra.market.step_times import SETUP_S, evidence
from infra.records import Offer
from infra.runs.lookup import find_run
from infra.selection.machine_spec import MachineSpec
from infra.units import MOST_S, BadAmount, cents, duration, estimated, in_usd, micro_usd, rate
from scripts.cli import context, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import accuracy
from store import terminal
from trainer.config import PhaseConfig
from trainer.records.phase_registry import phase_names

COMPARED = ("B200", "H200", "H100", "A100")


@dataclass(frozen=True, kw_only=True)
class EstimateFlags(Typed):
    """Flags describing the work of an estimate."""

    phase: str = flag("", f"estimate: {phase_names()}, a sum of them, or all", group=ESTIMATES)
    profile: str = flag("", "estimate: recipe (default: the recipe of the job, else SLIPWAY_PROFILE)", group=ESTIMATES)
    steps: int | None = flag(None, "estimate: optimizer steps of each phase", group=ESTIMATES, least=1)
    tokens: float | None = flag(None, "estimate: number of training tokens", group=ESTIMATES)
    e: tuple[str, ...] = flag(
        (), "estimate: variables of the job, spelled as in SkyPilot: TOKENS=N, MODEL=NAME", group=ESTIMATES
    )
    gpu: str = flag(
        "", "estimate: kind of GPU, or several to compare: H100,B200 (default: the GPU of the job)", group=ESTIMATES
    )
    num_gpus: int = flag(0, "estimate: number of GPUs of the pod", group=ESTIMATES, least=1)
    hours: float | None = flag(None, "estimate: duration of the work, if known", group=ESTIMATES, unit="HOURS")
    price: str = flag("", "estimate: US dollars per GPU-hour instead of current offers", group=ESTIMATES, unit="USD")
    use_spot: bool = flag(False, "estimate: use prices of spot machines", group=ESTIMATES)
    provider: str = flag("", "estimate: use only offers of runpod, lium or shadeform", group=ESTIMATES)


@dataclass(frozen=True, kw_only=True)
class CostFlags(Output, EstimateFlags):
    run: str = flag("", "show only this run: the name, or the first letters of the name", word=True)
    month: str = flag("", "show only the cost of this month: 2026-11")
    offline: bool = flag(False, "do not ask the vendors for their bills")
    estimate: bool = flag(False, "estimate the cost of planned work, instead of showing past costs")
    accuracy: bool = flag(False, "compare forecasts with actual times and prices, instead of showing past costs")


@command(record=CostFlags, world=BEGIN, example="inv cost --estimate --phase sft --gpu H100,B200")
def cost(spec: CostFlags) -> None:
    """Show past costs, or estimate the cost of planned work.

    Costs are shown by pod, run and month, as quoted and as billed. --accuracy compares forecast times and prices with
    the actual ones.
    """
    if spec.estimate:
        if spec.run or spec.month:
            raise UsageError("--estimate is about planned work, a run name or --month about past costs; give only one")
        if spec.accuracy:
            raise UsageError("--estimate is about planned work, --accuracy about finished runs; give only one")
        if others := _flags_of_packs(spec, of_estimates=False):
            raise UsageError(f"--estimate is about planned work, --{others[0]} about past runs; give only one")
        show_estimate(spec, spec.json)
        return
    typed = [one.spelling for one in flags_of(EstimateFlags) if getattr(spec, one.name)]
    if typed := [*typed, *_flags_of_packs(spec, of_estimates=True)]:
        raise UsageError(f"--{typed[0]} needs --estimate")
    run, month = spec.run, spec.month
    if spec.accuracy and month:
        raise UsageError("--accuracy compares runs, not months. Leave out --month, or give the name of a run")
    settings = context.settings()
    with open_journal(settings) as journal:
        views = cost_views.installed()
        if shown := next(filter(None, (one.of_flags(spec, journal, settings) for one in views.values())), None):
            print_json(shown.document) if spec.json else print(render.clean(shown.text))
            return
        if spec.accuracy:
            accuracy.show(journal, settings, run, spec.json)
            return
        name = find_run(journal, run).run if run else ""
        with terminal.show_while("asking vendors for bills"):
            found = spending.spent(journal, settings, run=name, month=month, asks=not spec.offline)
        tables = {}
        if name and not month:
            tables = {key: one.of_run(name, journal, settings, not spec.offline) for key, one in views.items()}
    lines, in_months, problems = found.lines, found.months, found.problems
    paid = [line for line in lines if line.quoted_micro_usd or line.billed_micro_usd]
    if spec.json:
        documents = {key: one.document for key, one in tables.items() if one}
        print_json({**ledger_json(lines, in_months, problems), **documents})
        return
    show_ledger(paid, in_months, month)
    for table in filter(None, tables.values()):
        print(f"\n{render.clean(table.text)}")
    if len(paid) < len(lines):
        render.say(f"{render.count(len(lines) - len(paid), 'pod')} without cost not shown")
    for problem in problems:
        render.say(render.clean(problem))


def _flags_of_packs(spec: CostFlags, of_estimates: bool) -> list[str]:
    """Return the given flags of packs that describe the work of an estimate, or the other given flags of packs."""
    given = {name for record in spec.added for name in nondefault_flags(record)}
    known = [one for record in spec.added for one in flags_of(type(record)) if one.spelling in given]
    return [one.spelling for one in known if (one.group == ESTIMATES) is of_estimates]


def show_ledger(lines: Sequence[PodCost], in_months: dict[str, int], month: str) -> None:
    """Print the cost of each pod, then the sums of runs and months, in US dollars."""
    if not lines:
        render.say(f"no money was spent{f' in {month}' if month else ''}")
        return
    rows = [("run", "provider", "machine", "began", "time", "USD/h", "quoted USD", "billed USD", "")]
    for one in lines:
        rows.append(
            (
                one.run,
                one.provider,
                one.pod_id or "?",
                time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.began_at)),
                render.duration(one.elapsed_s),
                rate(one.micro_usd_per_hour),
                cents(one.quoted_micro_usd),
                "?" if one.billed_micro_usd is None else cents(one.billed_micro_usd),
                _doubt(one),
            )
        )
    print(render.clean(columns(rows, least=(2, 3, 1, 5))))
    for name, amount in spending.by_run(lines).items():
        print(f"{name}: {in_usd(amount)}")
    for name, amount in in_months.items():
        print(f"{name}: {in_usd(amount)}")
    print(f"total{f' in {month}' if month else ''}: {in_usd(sum(one.micro_usd for one in lines))}")


def _doubt(one: PodCost) -> str:
    """Return why the bill of a pod may grow."""
    if not one.ended_at:
        return "still billing"
    return "" if one.is_final or one.billed_micro_usd is None else "bill not final"


def ledger_json(lines: Sequence[PodCost], in_months: dict[str, int], problems: list[str]) -> dict[str, Any]:
    """Return the ledger as JSON: times in ISO form, money as decimal strings in US dollars."""
    pods = [
        {
            "run": one.run,
            "provider": one.provider,
            "id": one.pod_id or None,
            "began_at": render.iso(one.began_at),
            "ended_at": render.iso(one.ended_at),
            "elapsed_s": round(one.elapsed_s),
            "usd_per_hour": render.usd(one.micro_usd_per_hour),
            "quoted_usd": render.usd(one.quoted_micro_usd),
            "billed_usd": None if one.billed_micro_usd is None else render.usd(one.billed_micro_usd),
            "billed_at": render.iso(one.billed_at),
            "usd": render.usd(one.micro_usd),
        }
        for one in lines
    ]
    return {
        "pods": pods,
        "runs": {name: render.usd(amount) for name, amount in spending.by_run(lines).items()},
        "months": {name: render.usd(amount) for name, amount in in_months.items()},
        "usd": render.usd(sum(one.micro_usd for one in lines)),
        "problems": problems,
    }


def show_estimate(wanted: EstimateFlags, as_json: bool) -> None:
    """Print the estimated duration and cost of work per GPU kind. Raises UsageError, or NoOffer without any price."""
    tokens, variables = read_variables(wanted)
    if wanted.num_gpus < 0 or (wanted.hours is not None and wanted.hours <= 0):
        raise UsageError("--num-gpus and --hours must be more than 0")
    context.set_environment(variables)
    settings = context.settings(profile=wanted.profile)
    what, machine, text_bytes = "work", MachineSpec(), 0
    work: float | tuple[PhaseConfig, ...] = 3600 * (wanted.hours or 0.0)
    if wanted.phase or any(map(nondefault_flags, wanted.added)) or not work:
        named = quotes.work_named(wanted.phase, wanted, settings, wanted.steps, tokens)
        what, machine, text_bytes = named.words, named.machine, named.text_bytes
        work = work or named.phases
    if wanted.gpu or wanted.num_gpus:  # as in a launch, any typed GPU flag discards the whole machine of the job
        machine = MachineSpec()
    kinds = kinds_of(wanted.gpu or machine.gpu, wanted.num_gpus or machine.num_gpus or 1)
    price, seen = price_of(wanted.price), quotes.CurrentOffers(offers=())
    if price:
        seen = quotes.CurrentOffers(offers=tuple(priced(kind, count, price) for kind, count in kinds))
    else:
        with terminal.show_while("asking for offers"):
            seen = quotes.offers_of(kinds, settings, wanted.provider, wanted.use_spot)
    found = [
        quotes.quote(work, kind, count, seen.offers, settings, 1, wanted.use_spot and not price, text_bytes)
        for kind, count in kinds
    ]
    if as_json:
        estimates = [estimate_json(one, bool(price)) for one in found]
        print_json(
            {"work": what, "estimates": estimates, "silent": list(seen.silent), "prices_as_of": seen.dated or None}
        )
    else:
        print(f"=== {what} ===")
        print(estimate_table(found, bool(price), seen.dated))
        if wanted.hours is None:
            render.say(
                "Times cover the named work only, without earlier phases. Dollars include boot and "
                f"set-up, {duration(SETUP_S[1])} expected"
            )
        for one in seen.silent:
            render.say(render.clean(one))
    if all(one.micro_usd is None for one in found):
        typos = gpus.typos(",".join(kind for kind, _ in kinds)).items()
        meant = "".join(f"{kind} is not in the table of GPUs; did you mean {near}? " for kind, near in typos)
        raise NoOffer(
            f"{meant}no vendor offers any of these GPUs now, so no price is known. Give a price: --price. Or list "
            "all offers: inv offers"
        )


def kinds_of(gpu: str, num_gpus: int) -> list[tuple[str, int]]:
    """Return (GPU kind, count) pairs to compare; COMPARED without a kind."""
    kinds = [(kind, count or num_gpus) for kind, count in gpus.read_set(gpu, num_gpus)]
    return kinds or [(kind, num_gpus) for kind in COMPARED]


def priced(kind: str, num_gpus: int, micro_usd_per_gpu: int) -> Offer:
    """Return an offer at the typed price."""
    return Offer(provider="", offer_id="", gpu=kind, num_gpus=num_gpus, micro_usd_per_hour=micro_usd_per_gpu * num_gpus)


def price_of(text: str) -> int:
    """Return the price in micro-USD, or 0 for an empty text. Raises UsageError."""
    try:
        price = micro_usd(text.lstrip("$")) if text else 0
    except BadAmount as error:
        raise UsageError(f"--price: {error}") from None
    if text and not price:
        raise UsageError("--price is 0. Give the price of a GPU per hour, or leave out --price to use current offers")
    return price


def read_variables(wanted: EstimateFlags) -> tuple[float, list[str]]:
    """Return the token count, 0 if not given, and the variables of the work. Raises UsageError."""
    tokens, others = wanted.tokens, []
    for word in wanted.e:
        name, equals, value = word.partition("=")
        if name != "TOKENS" or not equals:
            others.append(word)
            continue
        try:
            tokens = float(value)
        except ValueError:
            raise UsageError(f"-e {word}: {value!r} is not a number") from None
    if tokens is not None and not 0 < tokens < 1e15:
        raise UsageError(f"{tokens:g} is not a plausible number of tokens; expected more than 0 and less than 1e15")
    named = work_kinds.cost_variables(wanted, wanted.profile)
    return tokens or 0.0, [*others, *(f"{name}={value}" for name, value in named.items())]


def estimate_table(found: Sequence[Quote], is_given: bool, dated: str = "") -> str:
    """Return a row per GPU kind: hours, unit price, total cost, and the evidence for the hours.

    dated: date of catalogue prices; "" for current offers.
    """
    rows: list[tuple[str, ...]] = [("GPUs", "time", "USD per GPU-hour", "low", "expected", "high", "time is")]
    for one in found:
        low, expected, high = map(estimated, one.seconds)
        time = expected if low == high else f"{expected} ({low} to {high})"
        name = f"{one.num_gpus}x {one.offer.gpu if one.offer else one.gpu}"
        known = evidence(one.estimate) if one.estimate else "as given"
        if one.offer is None or one.micro_usd is None:
            rows.append((name, time, "not offered now", "?", "?", "?", known))
            continue
        least, most = (cents(-(-price // one.num_gpus)) for price in (one.offer.micro_usd_per_hour, one.median))
        of = f"{one.offers}, {dated}" if dated else f"{one.offers}"
        source = "as given" if is_given else f"cheapest and median of {of}"
        price = f"{least} to {most} ({source})" if least != most else f"{least} ({source})"
        rows.append((name, time, price, *map(cents, one.micro_usd), known))
    return columns(rows, least=(6, 2))


def estimate_json(one: Quote, is_given: bool) -> dict[str, Any]:
    names = ("low", "expected", "high")
    prices = None
    if one.offer:
        per_gpu = [-(-price // one.num_gpus) for price in (one.offer.micro_usd_per_hour,) * 2 + (one.median,)]
        prices = dict(zip(names, map(render.usd, per_gpu), strict=True))
    return {
        "gpu": one.gpu,
        "num_gpus": one.num_gpus,
        "machine": one.offer.gpu if one.offer else None,
        "hours": {name: None if s > MOST_S else round(s / 3600, 4) for name, s in zip(names, one.seconds, strict=True)},
        "hours_from": evidence(one.estimate) if one.estimate else "as given",
        "usd_per_gpu_hour": prices,
        "usd": one.micro_usd and dict(zip(names, map(render.usd, one.micro_usd), strict=True)),
        "offers": 0 if is_given else one.offers,
    }
