"""The errors of the forecasts of past runs: time by the measured times, and cost by the ledger."""

import itertools
from collections.abc import Sequence

from flows.planning import learned
from infra.agent.limits import read_clocks
from infra.ledger import spend
from infra.ledger.accuracy import ForecastError, compared
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.timings import RunTimes, Timings
from infra.runs import run_rows
from infra.runs.lookup import find_run
from infra.settings import Settings


def errors(journal: Journal, settings: Settings, run: str = "") -> list[ForecastError]:
    """Return the forecast errors of `run`, or of all runs, oldest first. Raise UsageError for an unknown run."""
    learned.save_measured_times(journal, settings)
    name, now = find_run(journal, run).run if run else "", read_clocks()
    told, pods, found = journal.reported_costs("vendor"), dict[str, list[Op]](), []
    for op in journal.ops():
        if name in ("", op.run, op.run_of_nodes):
            pods.setdefault(run_rows.run_of(op), []).append(op)
    for one in Timings.for_journal(settings.state_file).all():
        if name in ("", one.run):
            rows = _pods_of_launch(one, pods.get(one.run, [])) if one.micro_usd else []
            spent = spend.total(rows, told, now, clock_scale=settings.clock_scale) if rows else None
            found.append(compared(one, spent))
    return [one for one in found if one]


def _pods_of_launch(one: RunTimes, rows: Sequence[Op]) -> list[Op]:
    """Return the rows of all nodes of a launch: the rows of a run from the row of node 0 to the next row of node 0."""
    since = itertools.dropwhile(lambda op: op.token != one.token, rows)
    return list(itertools.takewhile(lambda op: op.rank or op.token == one.token, since))
