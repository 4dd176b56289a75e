"""The state of runs for a table or page. Read-only; `due` names the rows that a settling command must check.

A run in the wait queue for a machine also has a row. `fold_groups` merges the runs of a group into one row;
`expand_group` returns a row per run, including runs that wait for a pod or for money.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flows.runs.run_groups import SUCCEEDED, WAITING, RunGroup, recorded_groups
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError
from infra.ledger import wait_queue
from infra.ledger.budgets import is_recent
from infra.ledger.journal import Journal
from infra.providers import Provider
from infra.records import PodView
from infra.runs import pod_views, run_rows
from infra.runs.lookup import between_pods, find_run
from infra.selection import registry
from infra.settings import LOCAL, Settings, is_rented

if TYPE_CHECKING:
    from flows.supervisor.over_limit import OverLimit

OpenProvider = Callable[[Settings, str], Provider]
NONE: Mapping[str, RunGroup] = MappingProxyType({})
# The state of a group is the first of these states among the runs.
AT_WORK = ("running", "lost", "planned", WAITING, pod_views.ENDING)


def status(
    journal: Journal,
    settings: Settings,
    run: str = "",
    ended: int = 10,
    open_provider: OpenProvider = registry.provider,
) -> list[PodView]:
    """Return all live rows and the last `ended` finished rows, newest first; `run` is always included.

    Unresponsive pods do not delay the result. Raise UsageError for an unknown run.
    """
    vendors = {}
    for name in {op.vendor for op in journal.ops()}:
        with suppress(SlipwayError):  # such as a missing inventory: the rows report an unconfigured provider
            vendors[name] = open_provider(settings, name)
    in_line, groups = waiting(journal), recorded_groups(settings)
    known = {one.run for one in in_line} | groups.keys()
    name = find_run(journal, run).run if run and run not in known else run
    views = pod_views.snapshot(journal, vendors, settings.homes, ended=ended, named=name)[::-1]
    views = [with_left(view, journal, settings) for view in views]
    views = [*in_line, *(view for view in views if view.run not in {one.run for one in in_line})]
    between = {op.run for op in between_pods(journal) if is_recent(journal, op.run)}
    views = [
        replace(view, state="waiting", ended_at=None) if view.run in between and view.state == "stopped" else view
        for view in views
    ]
    of = {run: one.name for one in groups.values() for run in one.runs}
    return [replace(view, group=of.get(view.run, "")) for view in views]


def with_excess(views: Sequence[PodView], over: "Sequence[OverLimit]") -> list[PodView]:
    """Return the rows with the excess added for pods found over their limit, live or ended."""
    found = {one.op.run: one for one in over}
    return [
        replace(view, over_limit_micro_usd=one.excess.micro_usd, over_limit_s=one.excess.time_s, heard_s=one.heard_s)
        if (one := found.get(view.run))
        else view
        for view in views
    ]


def expand_group(group: RunGroup, views: Sequence[PodView]) -> list[PodView]:
    """Return a row for each run of a group: the live view, else the record of the group."""
    seen = {view.run: view for view in views}
    return [
        seen.get(one.run)
        or PodView(
            run=one.run,
            provider=group.provider,
            state=one.state,
            group=group.name,
            spent_micro_usd=one.micro_usd,
            note=one.reason,
        )
        for one in group.runs.values()
    ]


def fold_groups(
    views: Sequence[PodView], groups: Mapping[str, RunGroup], left: Mapping[str, str] = MappingProxyType({})
) -> list[PodView]:
    """Return the rows with all runs of a group merged into one row at the position of the first run.

    left: by group name, the command to resume a group with a dead process.
    """
    found: dict[str, PodView] = {}
    for view in views:
        if view.group not in groups:
            found[view.run] = view
        elif f"{view.group}/" not in found:
            group = groups[view.group]
            one = _one_of(group, expand_group(group, views))
            how = f"the process is gone; to continue: {left[view.group]}; " if view.group in left else ""
            found[f"{view.group}/"] = replace(one, note=f"{how}{one.note}")
    return list(found.values())


def _one_of(group: RunGroup, views: Sequence[PodView]) -> PodView:
    """Return a summary row for the runs of a group."""
    states = Counter(view.state for view in views)
    counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
    waits = next((f"; {view.run}: {view.note}" for view in views if view.state == WAITING), "")
    return PodView(
        run=group.name,
        provider=views[0].provider,
        state=next((one for one in (*AT_WORK, SUCCEEDED) if states[one]), views[0].state),
        step=f"{states[SUCCEEDED]} of {len(views)} done",
        micro_usd_per_hour=sum(view.micro_usd_per_hour for view in views),
        spent_micro_usd=sum(view.spent_micro_usd for view in views),
        started_at=min((view.started_at for view in views if view.started_at), default=0.0),
        recoveries=sum(view.recoveries for view in views),
        note=f"a {group.noun} of {len(views)} runs: {counts}{waits}; to list the runs: inv status {group.name}",
        group=group.name,
    )


def waiting(journal: Journal) -> list[PodView]:
    """Return the runs in the wait queue for a machine of the user, the most recent first."""
    there = {op.run for op in journal.ops(live=True)}  # already being started
    return [
        PodView(
            run=one.run,
            provider=one.vendor,
            state="waiting",
            note=wait_queue.why_waiting(journal, one),
            started_at=float(one.since),
        )
        for one in wait_queue.waiting(journal)[::-1]
        if one.run not in there
    ]


def of_run(views: list[PodView], journal: Journal, run: str, groups: Mapping[str, RunGroup] = NONE) -> list[PodView]:
    """Return the rows of a run, or of all runs of a group; all rows if `run` is ""."""
    if not run or run in [view.run for view in views]:
        return [view for view in views if run in ("", view.run)]
    if run in groups:
        return expand_group(groups[run], views)
    name = find_run(journal, run).run
    return [view for view in views if view.run == name]


def due(views: list[PodView], journal: Journal) -> list[str]:
    """Return the tokens of live rows that `settle` may find ended: work is over, or the pod may bill without work."""
    ended = {view.run for view in views if view.state not in ("running", "lost", "idle", pod_views.ENDING)}
    ended |= {view.run for view in views if view.state == pod_views.ENDING and not is_rented(view.provider)}
    rented = [view for view in views if is_rented(view.provider)]
    ended |= {view.run for view in rented if view.state == "lost" or view.limit_in_s == 0}  # may still bill
    return [op.token for op in journal.ops(live=True) if op.vendor == LOCAL or op.run in ended]


def current_record(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last record of the current step, or of the last step that ran."""
    for step in reversed(progress.get("steps", ())):
        if step.get("record") and step["state"] != "waiting":
            return step["record"]
    return {}


def with_left(view: PodView, journal: Journal, settings: Settings) -> PodView:
    """Return the row of a running run with the remaining time and a warning if limits will not suffice, where known."""
    rows = journal.ops(run=view.run) if view.state == "running" else []
    if not rows:
        return view
    from flows.limits.beyond_limit import estimate_time_left, forecast_excess, is_comparable

    found = estimate_time_left(rows, view.progress, settings)
    if found is None:
        return view
    view = replace(view, left_s=found[0], left_from=found[1])
    if not is_comparable(rows[-1], view.progress):
        return view
    of_all = run_rows.rows_of(view.run, run_rows.size_of(rows[-1]), journal)
    beyond = forecast_excess(rows[-1], of_all, found[0], read_clocks(), view.clock_scale)
    return replace(view, beyond_limit=beyond.words) if beyond else view
