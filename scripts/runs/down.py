"""The commands that end runs: `down`, and `stop`, which only explains why pods cannot be stopped."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.limits import shared_resources
from flows.pods import stop as ending
from flows.runs import run_groups
from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from store import terminal


@dataclass(frozen=True, kw_only=True)
class DownFlags(OneRunFlags):
    all: bool = flag(False, "every live run")


@command(record=DownFlags, example="inv down brave-otter-3")
def down(spec: DownFlags) -> None:
    """End a run; return when no pod of the run exists or bills.

    The work is saved first. A pod is reported as gone only when the vendor's answer proves the deletion.
    """
    run = spec.run
    settings = context.settings()
    with open_journal(settings) as journal:
        known = [one.name for one in service_rows.list_services(journal)]
        is_service = bool(run) and not spec.all and run in known
        services = known if spec.all else [run] if is_service else []  # first: else replicas are replaced
        with terminal.show_while(f"ending {', '.join(services)} and all replicas"):
            done = list(ending.end_services(services, journal, settings, render.tell))
        if is_service:
            raise_worst(done)
            if spec.json:
                print_json({"ended": [run]})
            return
        # End waiting runs first, so that none of them rents the capacity that becomes free.
        waited = shared_resources.end_waiting("" if spec.all else run, journal, render.tell) if run or spec.all else []
        groups = [
            (kind, name)
            for kind in run_groups.kinds()
            for name in kind.started_groups(journal, settings)
            if spec.all or name == run
        ]
        rows = [op for kind, name in groups for op in kind.stop(name, journal, settings, render.tell)]
        if spec.all:
            rows = ending.all_rows(journal)
        elif not (groups or waited and run not in journal.runs()):
            rows = ending.rows_of(run, journal)
        with terminal.show_while(f"saving and ending {', '.join(one.run for one in rows)}"):
            ended = list(ending.end_pods(rows, journal, settings, render.tell))
    raise_worst([*done, *ended])
    if spec.json:
        print_json({"ended": [*waited, *(one.name for one in ended if not one.problem)]})
    elif not (rows or waited):
        render.say("no run is live")


def raise_worst(done: Sequence[ending.StopResult]) -> None:
    """Print all problems but the worst, then raise the problem with the highest exit code."""
    problems = [one.problem for one in done if one.problem]
    ordered = sorted(problems, key=lambda one: one.exit_code)
    for one in ordered[:-1]:
        render.say(render.clean(str(one)))
    if ordered:
        raise ordered[-1]


@dataclass(frozen=True, kw_only=True)
class StopFlags:
    run: str = flag("", "name of the run", word=True)


@command(record=StopFlags, example="inv down brave-otter-3")
def stop(spec: StopFlags) -> None:
    """Refuse, because a stopped pod still bills. See `down`.

    A restart of a stopped pod also fails if no GPU is free. The message names the commands to use instead.
    """
    name = spec.run or "RUN"
    raise UsageError(
        "pods cannot be stopped, and nothing was changed: only one vendor offers stopped pods, bills "
        "their disk at twice the rate, and may have no free GPU at the restart. End the run: inv down "
        f"{name}. Continue later from the checkpoints: inv resume {name}"
    )
