"""The command `inv drill`: show the plan and price, ask for confirmation, run the drill and report the findings."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from invoke import Exit

from infra.errors import UsageError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.providers.promises import account_of
from infra.rehearsal import attach
from infra.settings import Settings
from infra.units import BadAmount, count, in_usd, micro_usd
from packs.drill.control import clauses, differences
from packs.drill.control import drill as use_case
from packs.drill.control.clauses import BROKEN, UNREACHED, ClauseResult
from packs.drill.control.differences import Difference
from packs.drill.control.planning import Planned, plan
from packs.drill.control.readings import REFUSED
from packs.drill.control.reports import DrillReport, Reports
from scripts.cli import context, prompts, rehearsal_world, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table


@dataclass(frozen=True, kw_only=True)
class DrillFlags(Questions, Output):
    provider: str = flag("", "vendor to test: runpod, lium, shadeform, or an extension")
    spend_limit: str = flag("3", "maximum US dollars for all machines of the drill together", unit="USD")
    gpu: str = flag("", "kind of GPU, or any of a set (default: the cheapest machine with one GPU)")
    cloud: str = flag("", "only machines of this cloud or tier of the vendor, such as SECURE")
    store: str = flag("", "store for the drill's log and checkpoint: hf://, s3:// or gs:// (default: from .env)")
    dry_run: bool = flag(False, "show the machines to rent and the price, and stop")
    plant: str = flag(
        "",
        "with --rehearse: make the vendor break the documentation in this way, which the drill must "
        "detect; `all` tries every way in turn",
        unit="NAME",
    )


# `speed`: the work of a drill takes real time, which must not exhaust the drill's limits in a faster rehearsal.
@command(record=DrillFlags, world=BEGIN, speed=20.0, rents=True, example="inv drill --provider runpod --spend-limit 3")
def drill(spec: DrillFlags) -> None:
    """Test the promises of a vendor on rented machines.

    The cheapest machines are rented, checked and ended: price, mark, timer, a lost answer, key, guard, store,
    deletion, bill. It shows the price and asks first. The exit code is 5 when a promise is broken.
    """
    settings = context.settings_of(spec)
    planted = differences.chosen(spec.plant, spec.provider) if spec.plant else ()
    if planted and not settings.rehearsal:
        raise UsageError("--plant needs a rehearsal, because only rehearsed vendors can break promises: add --rehearse")
    try:
        amount = micro_usd(spec.spend_limit.lstrip("$"))
    except BadAmount as error:
        raise UsageError(f"--spend-limit: {error}") from None
    with open_journal(settings) as journal:
        planned = plan(spec.provider, spec.gpu, spec.cloud, amount, journal, settings, render.tell)
        if not spec.json:
            show_plan(planned, settings)
        if spec.dry_run:
            if spec.json:
                print_json(plan_json(planned))
            render.say("dry run: nothing was rented")
            return
        prompts.confirm(spec.yes)
        if planted:
            plant(planted, planned, journal, settings, spec.json)
            return
        held = use_case.Drill(planned, settings, journal, render.tell)
        seen = held.run()
    at, reports = int(time.time()), Reports.for_journal(settings.state_file)
    report = DrillReport(
        vendor=spec.provider,
        account=account_of(spec.provider, settings),
        at=at,
        is_rehearsed=bool(settings.rehearsal),
        findings=tuple(clauses.judge(seen)),
        counted_micro_usd=sum(one.ledger_micro_usd for one in seen.trials),
    )
    path = reports.save(report)
    if spec.json:
        print_json({**asdict(report), "report": path})
    else:
        show(report.findings)
        print(render.clean(f"{report.summary(at)}; {in_usd(report.counted_micro_usd)} by our ledger"))
        render.say(f"report: {path}")
    leave(report)


def plant(wanted: Sequence[Difference], planned: Planned, journal: Journal, settings: Settings, is_json: bool) -> None:
    """Run a drill per planted difference. Exit with code 5 if a drill misses its difference."""
    world, found = attach.find(rehearsal_world.base()), []
    for one in wanted:
        render.say(f"planted: {one.name}: {one.about}")
        world.send_command("/faults", one.faults)
        try:
            held = use_case.Drill(planned, settings, journal, render.tell, is_light=True, trials=one.trials)
            seen = held.run()
        finally:
            world.send_command("/faults", {})
        findings = clauses.judge(seen)
        hit = next((it for it in findings if it.clause == one.clause and it.state in (BROKEN, REFUSED)), None)
        found.append((one, hit, [it.clause for it in findings if it.state == BROKEN and it is not hit]))
    if is_json:
        print_json([{"planted": one.name, "found": hit and asdict(hit), "also": also} for one, hit, also in found])
    else:
        rows = [("planted", "", "clause", "expected", "seen", "broken by that, too")]
        rows += [
            (
                one.name,
                "found" if hit else "MISSED",
                one.clause,
                hit.expected if hit else "",
                hit.seen if hit else "",
                ", ".join(also),
            )
            for one, hit, also in found
        ]
        print(render.clean(columns(rows)))
    missed = [one.name for one, hit, _ in found if not hit]
    render.say(f"{len(found) - len(missed)} of {count(len(found), 'difference')} found")
    if missed:
        raise Exit(f"inv drill: not found: {', '.join(missed)}", code=5)


def show_plan(planned: Planned, settings: Settings) -> None:
    """Show the machines, the expected and maximum cost, and the limits."""
    offers_table.show_offers(planned.request, planned.offers)
    machines, most = count(len(planned.trials), "machine"), in_usd(planned.most_micro_usd)
    render.say(f"{machines}, some minutes each: about {in_usd(planned.expected_micro_usd)}, {most} at most")
    offers_table.show_ends(planned.limits, planned.offers[0], settings, "end")


def plan_json(planned: Planned) -> dict[str, Any]:
    return {
        "provider": planned.vendor.name,
        "machines": list(planned.trials),
        "usd_per_hour": render.usd(planned.offers[0].micro_usd_per_hour),
        "expected_usd": render.usd(planned.expected_micro_usd),
        "most_usd": render.usd(planned.most_micro_usd),
    }


def show(findings: Sequence[ClauseResult]) -> None:
    rows = [("clause", "", "expected", "seen")]
    told = ""
    for one in findings:  # The reason of a failed trial is long and repeats for many clauses.
        is_same = one.state == UNREACHED and one.seen == told
        rows.append((one.clause, one.state, one.expected, "for the same reason" if is_same else one.seen))
        told = one.seen
    print(render.clean(columns(rows)))


def leave(report: DrillReport) -> None:
    """Exit with code 5 for a broken promise, or with code 1 if the drill could not test every clause."""
    if broken := report.clauses_in_state(BROKEN):
        raise Exit(
            f"inv drill: {report.vendor} differs from the behavior that Slipway relies on: {', '.join(broken)}", code=5
        )
    if missed := report.clauses_in_state(UNREACHED):
        raise Exit(f"inv drill: these promises could not be tested: {', '.join(missed)}; run the drill again", code=1)
