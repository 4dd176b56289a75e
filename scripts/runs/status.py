"""The command `status`: the table of runs, printed once or refreshed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from invoke import Exit

from flows.reading import status as use_case
from flows.runs import run_groups
from flows.supervisor import supervisor_client
from infra.flags import flag
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.providers import by_name
from infra.records import PodView
from infra.runs.sync import fetched_files
from infra.selection import registry
from infra.settings import Settings
from infra.units import in_usd
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import end_over_limit, found_over_limit, open_journal, past_limit_words
from scripts.runs import status_table
from store import packs, terminal

if TYPE_CHECKING:
    from flows.supervisor.over_limit import OverLimit

SHOWN = 4  # runs listed per budget


@dataclass(frozen=True, kw_only=True)
class StatusFlags(OneRunFlags):
    watch: str | bool | None = flag(
        None,
        "redraw every N seconds (on a terminal 1 if all active runs are on this machine, else 5; vendors are asked "
        "every 60 s)",
        bare=True,
        unit="SECONDS",
    )


@command(record=StatusFlags, example="inv status --watch")
def status(spec: StatusFlags) -> None:
    """Show every run: state, step and cost.

    Each figure is shown with its age.
    """
    settings = context.settings()
    every_s = context.watch_seconds(spec.watch, 0.0)
    if why := fetched_files.reserve_problem(settings.homes, settings.reserve_bytes):
        render.say(why)
    with open_journal(settings) as journal:
        if every_s is not None:
            from scripts.runs import watching

            watching.watch(journal, settings, spec.run, every_s or None, spec.json, refresh_rows, fold)
        with terminal.show_while("reading the state of every pod"):
            views = refresh_rows(journal, settings, spec.run)
        if spec.json:
            print_json([status_table.view_json(view) for view in views])
        else:
            show(views, journal, settings, spec.run)
        exit_if_over_limit(found_over_limit(journal))


def show(views: list[PodView], journal: Journal, settings: Settings, run: str) -> None:
    """Print the table, followed by notes on accounts, budgets and this machine."""
    if views:
        shown = views if run else fold(views, journal, settings)
        render.console(stderr=False).print(status_table.status_table(shown), soft_wrap=True)
        for notes in by_name.account_notes(settings, [view.provider for view in views]).values():
            render.say("\n".join(notes.lines))
    else:
        render.say("no runs yet. Start a run: ./inv launch --phase sft")
    for line in budget_lines(journal, settings):
        render.say(line)
    for said in filter(None, (one.this_machine_status(settings) for one in packs.always_on_machines())):
        render.say(said)


def budget_lines(journal: Journal, settings: Settings) -> Iterator[str]:
    """Yield a line for each budget with reserved, unspent money."""
    for one in budgets.states(journal, settings.clock_scale):
        holders = [run.run for run in one.runs.values() if run.committed > run.spent]
        if holders:
            spent, kept, free = map(in_usd, (one.spent, one.committed - one.spent, one.free))
            by = ", ".join(holders[:SHOWN]) + (f" and {len(holders) - SHOWN} more" if len(holders) > SHOWN else "")
            limit = in_usd(one.budget.amount)
            yield f"{one.budget.name}: {spent} of {limit} spent, {kept} reserved ({by}), {free} free"


def refresh_rows(
    journal: Journal, settings: Settings, run: str, open_provider: use_case.OpenProvider = registry.provider
) -> list[PodView]:
    """Return the table rows, newest first, after ending and settling all due runs."""
    over = end_over_limit(journal, settings)
    views = use_case.status(journal, settings, run, open_provider=open_provider)
    if settle_due(views, journal, settings):
        views = use_case.status(journal, settings, run, open_provider=open_provider)
    return use_case.of_run(use_case.with_excess(views, over), journal, run, run_groups.recorded_groups(settings))


def exit_if_over_limit(over: "Sequence[OverLimit]") -> None:
    """Raise Exit with code 5 if a pod was found past its limit, ended or not."""
    if over:
        raise Exit(render.clean(f"inv status: {past_limit_words(over)}"), code=5)


def fold(views: list[PodView], journal: Journal, settings: Settings) -> list[PodView]:
    """Return the rows with each group folded into a single row."""
    known = run_groups.recorded_groups(settings)
    return use_case.fold_groups(views, known, run_groups.commands(journal, settings, list(known)))


def settle_due(views: list[PodView], journal: Journal, settings: Settings) -> bool:
    """Settle ended runs and report them; return whether any run was settled.

    The command does not wait for slow vendors and does not clean up after killed processes: the supervisor does both,
    and is started if needed.
    """
    ended = []
    if due := use_case.due(views, journal):
        from infra.runs.journal_upkeep import settle  # imported here, because most looks settle no run

        ended = settle(journal, settings, render.tell, due, waits=False)
    supervisor_client.ensure(settings, waits=False, journal=journal)
    for op in ended:
        render.tell(f"{op.run} was settled: {op.reason or op.outcome or 'the run has ended'}")
    return bool(ended)
