"""The command `resume`: the offers, price and limits of the new machine, then the continued run."""

from dataclasses import dataclass

from flows.runs import resume as resuming
from flows.supervisor import supervisor_client
from infra.flags import flag
from infra.runs.journal_upkeep import settle
from infra.selection.machine_spec import LIMITS
from infra.units import dollars, in_usd
from scripts.cli import context, prompts, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags, Questions
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.runs import following


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(Questions, OneRunFlags):
    spend_limit: str = flag(
        "", "rented: new limit in US dollars, counted from the start of the run", group=LIMITS, unit="USD"
    )
    ttl: str = flag(
        "", "rented: end the run after this time, counted from now: 90s, 30m, 2h", group=LIMITS, unit="DURATION"
    )
    detach: bool = flag(False, "hand the run to the supervisor and return")
    dry_run: bool = flag(False, "show the offers, prices, limits and what would end the pod, and stop")


@command(record=ResumeFlags, env=True, example="inv resume brave-otter-3 --spend-limit 300", rents=True)
def resume(spec: ResumeFlags) -> None:
    """Continue a run from the newest complete checkpoint.

    The run may have been ended, killed or failed. Before the rental, the command shows machines, prices and limits, and
    asks for confirmation.
    """
    settings = context.settings()
    with open_journal(settings) as journal, supervisor_client.hand_over_on_error(settings):
        settle(journal, settings, render.tell)
        found = resuming.resumption(spec.run, spec.spend_limit, spec.ttl, journal, settings, render.tell)
        if found.plan is not None:
            assert found.plan.job is not None
            if not spec.json:
                offers_table.show_offers(found.plan.request, found.offers)
                render.say(found.money)
                offers_table.show_ends(found.plan.job.limits, found.offers[0], settings, found.plan.job.on_failure)
            if not spec.dry_run:
                offers = prompts.pick(list(found.offers), False, spec.yes, offers_table.show_table, flags="")
                if not offers:
                    render.say("nothing was rented")
                    return
                found = resuming.with_offers(found, offers)
        if spec.dry_run:
            report(found, spec.json)
            return
        op = resuming.resume(found, journal, settings, render.tell)
        if spec.detach:
            following.detach_run(op, settings, spec.json)
        else:
            following.follow_to_end(op, journal, settings, spec.json)


def report(found: resuming.Resumption, as_json: bool) -> None:
    """Print the resumption of a dry run: the machine to rent and the remaining budget."""
    first, limits = (found.offers[0], found.plan.job.limits) if found.plan and found.plan.job else (None, None)
    left = limits.spend_micro_usd if limits else None
    if as_json:
        print_json(
            {
                "run": found.op.run,
                "state": "planned",
                "rents": first is not None,
                "usd_per_hour": dollars(first.micro_usd_per_hour) if first else None,
                "left_usd": None if left is None else dollars(left),
            }
        )
        return
    where = (
        "continues on the present machine; nothing is rented" if first is None else "rents the first available offer"
    )
    rest = "" if left is None else f", for at most {in_usd(left)}"
    render.say(f"{found.op.run} {where}{rest}; dry run: nothing was started")
