"""The command `inv cost`: the ledger of what was spent, and estimates of what work would cost."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flows.reading import spending
from infra.errors import MissingKey, NoOffer, UsageError
from infra.flags import flags_of
from infra.ledger import cost as costs
from infra.ledger.cost import Estimate, Measured, PodCost
from infra.market import catalogue, gpus
from infra.market.filters import satisfying
from infra.money import BadAmount, cents, in_usd, micro_usd
from infra.providers import offers
from infra.records import Request
from infra.runs.lookup import find_run
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.market import accuracy
from scripts.market.flags import CostFlags, EstimateFlags
from store import moving_line

COMPARED = ("B200", "H200", "H100", "A100")
H100_HOUR = (Measured("H100", 8, 1.0),)
# Measurements that people have reported: nanochat on Shadeform, the 1.58-bit stages and the diffusion model on RunPod.
PHASES = {"mid": (Measured("H100", 8, 1.0), Measured("B200", 8, 0.75)), "sft": H100_HOUR, "rl": H100_HOUR,
          "all": (Measured("H100", 8, 3.0), Measured("H100", 8, 4.0))}  # fmt: skip
STAGES = {"2": (Measured("H100", 4, 24.0, 10e9),), "3": (Measured("H100", 4, 8.0),)}
JOBS = {"dlm": (Measured("H100", 1, 4.0, 1e9), Measured("H100", 8, 4.0, 4e9))}


def cost(spec: CostFlags) -> None:
    if spec.estimate:
        if spec.run or spec.month:
            raise UsageError("--estimate is for work to come; a run or --month shows what was spent; give one of them")
        if spec.accuracy:
            raise UsageError("--estimate is for work to come, --accuracy for runs that are over; give one of them")
        show_estimate(spec, spec.json)
        return
    if given := [one.spelled for one in flags_of(EstimateFlags) if getattr(spec, one.name)]:
        raise UsageError(f"--{given[0]} belongs to --estimate")
    run, month = spec.run, spec.month
    if spec.accuracy and month:
        raise UsageError("--accuracy is for runs, not for a month; leave --month out, or give the name of a run")
    settings = context.settings()
    with open_journal(settings) as journal:
        if spec.accuracy:
            accuracy.show(journal, settings, run, spec.json)
            return
        name = find_run(journal, run).run if run else ""
        with moving_line.waiting("asking vendors for their bills"):
            found = spending.spent(journal, settings, run=name, month=month, asks=not spec.offline)
    lines, in_months, problems = found.lines, found.months, found.problems
    paid = [line for line in lines if line.quoted_micro_usd or line.billed_micro_usd]
    if spec.json:
        print_json(ledger_json(lines, in_months, problems))
        return
    show_ledger(paid, in_months, month)
    if len(paid) < len(lines):
        render.say(f"{render.count(len(lines) - len(paid), 'pod')} cost nothing, and are not shown")
    for problem in problems:
        render.say(render.clean(problem))


def show_ledger(lines: Sequence[PodCost], in_months: dict[str, int], month: str) -> None:
    """Print what each pod cost, then the sums of runs and months, in US dollars."""
    if not lines:
        render.say(f"nothing was spent{f' in {month}' if month else ''}")
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
                render.usd(one.micro_usd_per_hour),
                cents(one.quoted_micro_usd),
                "?" if one.billed_micro_usd is None else cents(one.billed_micro_usd),
                "" if one.ended_at else "still billing",
            )
        )
    print(render.clean(columns(rows)))
    for name, amount in spending.by_run(lines).items():
        print(f"{name}: {in_usd(amount)}")
    for name, amount in in_months.items():
        print(f"{name}: {in_usd(amount)}")
    print(f"total{f' in {month}' if month else ''}: {in_usd(sum(one.micro_usd for one in lines))}")


def ledger_json(lines: Sequence[PodCost], in_months: dict[str, int], problems: list[str]) -> dict[str, Any]:
    """Return the same as JSON: times in ISO form, money as decimal strings in US dollars."""
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
    """Print what some work would take and cost on kinds of GPUs. Raises UsageError."""
    tokens = tokens_of(wanted.tokens, wanted.e)
    what, work = work_of(wanted.phase, wanted.stage, wanted.job, wanted.hours)
    num_gpus = wanted.num_gpus or 1
    if num_gpus < 0 or (wanted.hours is not None and wanted.hours <= 0):
        raise UsageError("--num-gpus and --hours are positive")
    if tokens and work and not any(one.tokens for one in work):
        raise UsageError(f"how long {what} takes for this many tokens was never measured; give --hours")
    kinds = [(kind, count or num_gpus) for kind, count in gpus.read_set(wanted.gpu, num_gpus)]
    kinds = kinds or [(kind, num_gpus) for kind in COMPARED]
    given = price_of(wanted.price)
    offered, silent, dated = ([], (), "") if given else offers_for(kinds, wanted.use_spot, wanted.provider)
    found = []
    for kind, count in kinds:
        hours = (wanted.hours,) * 3 if wanted.hours else costs.hours_of(work, kind, count, tokens)
        request = Request(run="new", gpu=kind, num_gpus=count, spot=wanted.use_spot)
        fitting = [] if given else satisfying(request, offered)
        prices = (given,) * 3 if given else costs.prices_of(fitting)
        found.append(Estimate(gpu=kind, num_gpus=count, hours=hours, prices=prices, offers=len(fitting)))
    if as_json:
        estimates = [estimate_json(one) for one in found]
        print_json({"work": what, "estimates": estimates, "silent": list(silent), "prices_as_of": dated or None})
    else:
        print(f"=== {what} ===")
        print(estimate_table(found, dated))
        for one in silent:
            render.say(render.clean(one))
    if all(one.prices is None for one in found):
        raise NoOffer("none of these GPUs is on offer now, so there is no price; give --price, or run: inv offers")


def price_of(text: str) -> int:
    """Return micro-dollars; 0 when no price is given. Raises UsageError."""
    try:
        price = micro_usd(text.lstrip("$")) if text else 0
    except BadAmount as error:
        raise UsageError(f"--price: {error}") from None
    if text and not price:
        raise UsageError("--price is 0; give what a GPU costs for an hour, or leave it out to see what is offered")
    return price


def tokens_of(tokens: float | None, settings: Sequence[str]) -> float:
    for word in settings:
        name, equals, value = word.partition("=")
        if name != "TOKENS" or not equals:
            raise UsageError(f"-e {word}: an estimate knows TOKENS=N")
        try:
            tokens = float(value)
        except ValueError:
            raise UsageError(f"-e {word}: {value!r} is not a number") from None
    if tokens is not None and not 0 < tokens < 1e15:
        raise UsageError(f"{tokens:g} is not a credible number of tokens")
    return tokens or 0.0


def work_of(phase: str, stage: str, job: str, hours: float | None) -> tuple[str, tuple[Measured, ...]]:
    """Return the work to estimate, in words, and measurements of it. Raises UsageError."""
    asked = [(kind, word, known) for kind, word, known in
             (("phase", phase, PHASES), ("stage", stage, STAGES), ("job", job, JOBS)) if word]  # fmt: skip
    if len(asked) > 1:
        raise UsageError("one of --phase, --stage and --job, not several")
    if not asked:
        if hours is None:
            raise UsageError("what work? give --phase, --stage or --job, or --hours for any")
        return "work", ()
    kind, word, known = asked[0]
    if kind == "phase" and word not in known and set(word.split("+")) <= known.keys():
        parts = [known[one][0] for one in word.split("+")]  # one after the other, on the same GPUs
        return f"phase {word}", (replace(parts[0], hours=sum(part.hours for part in parts)),)
    if word not in known and hours is None:
        raise UsageError(f"--{kind} {word}: not measured yet; give --hours; measured: {', '.join(known)}")
    return f"{kind} {word}", known.get(word, ())


def offers_for(kinds: Sequence[tuple[str, int]], spot: bool, provider: str) -> tuple[list[Any], tuple[str, ...], str]:
    """Return the offers, the vendors that did not answer, and the date of catalogue prices, "" for today's offers."""
    wanted = ",".join(f"{kind}:{count}" for kind, count in kinds)
    request = Request(run="new", gpu=wanted, spot=spot)
    settings = context.settings()
    try:
        asked = [one for one in offers.sources(settings, provider) if one.name != "ssh"]  # own ones cost as they do
    except MissingKey as error:
        listed = catalogue.read(catalogue.file_beside(settings.state_file), provider)
        fitting = [one for one in listed if any(gpus.is_asked(kind, one.offer.gpu) for kind, _ in kinds)]
        dates = " or ".join(sorted({one.mark for one in fitting}))
        return [one.offer for one in listed], (f"prices that nobody offers now: {error}",), dates
    with moving_line.waiting(f"{', '.join(one.name for one in asked)}: asked for offers"):
        seen = offers.survey(asked, request)
    return list(seen.considered), tuple(f"{one.provider}: {one.error}" for one in seen.silent), ""


def estimate_table(found: Sequence[Estimate], dated: str = "") -> str:
    """Return a line for each kind of GPU: hours, its price, and what all would cost.

    dated: of when the prices are, where they are not today's.
    """
    rows: list[tuple[str, ...]] = [("GPUs", "hours", "USD per GPU-hour", "low", "expected", "high")]
    for one in found:
        low, expected, high = (f"{hours:.3g}" for hours in one.hours)
        hours = expected if low == high else f"{expected} ({low} to {high})"
        name = f"{one.num_gpus}x {one.gpu}"
        if one.prices is None or one.micro_usd is None:
            rows.append((name, hours, "nobody offers it now", "?", "?", "?"))
            continue
        least, _, most = map(cents, one.prices)
        of = f"{one.offers}, {dated}" if dated else f"{one.offers}"
        source = f"cheapest and median of {of}" if one.offers else "as given"
        price = f"{least} to {most} ({source})" if least != most else f"{least} ({source})"
        rows.append((name, hours, price, *map(cents, one.micro_usd)))
    return columns(rows)


def estimate_json(one: Estimate) -> dict[str, Any]:
    names = ("low", "expected", "high")
    return {
        "gpu": one.gpu,
        "num_gpus": one.num_gpus,
        "hours": dict(zip(names, (round(hours, 4) for hours in one.hours), strict=True)),
        "usd_per_gpu_hour": one.prices and dict(zip(names, map(render.usd, one.prices), strict=True)),
        "usd": one.micro_usd and dict(zip(names, map(render.usd, one.micro_usd), strict=True)),
        "offers": one.offers,
    }
