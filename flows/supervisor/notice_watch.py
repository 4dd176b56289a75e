"""Watch for events worth a notice: near limits, idle GPUs, unobserved ends of runs, and unhealthy replicas.

    observe   the journal: live runs with a hook, services; a look at each pod
    decide    `of_run`, `of_service`: notices for the observations; pure
    act       the outbox, which sends each notice once

The supervisor looks every `EVERY_S` seconds. The keeper of a run sends notices about ends and recoveries. The watch
settles the end of a run without a keeper, such as a local run.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.limits.beyond_limit import BeyondLimit, estimate_time_left, forecast_excess, is_comparable
from flows.supervisor.due import runs_to_watch
from infra.agent.limits import Clocks, read_clocks
from infra.errors import describe
from infra.ledger import service_rows, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.notices import hooks, outbox
from infra.notices.outbox import Notice, names_of, send_now
from infra.runs import observation, run_rows
from infra.runs.journal_upkeep import settle
from infra.runs.observation import Observation
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings
from infra.units import duration
from serve.policy import service_state
from serve.policy.replica_states import ILL
from serve.policy.service_state import ServiceRecord

EVERY_S = 10.0
NEAR = 0.8  # Share of a limit.
IDLE_S = 600.0  # Run clock; all GPUs of the run.
IDLE_PERCENT = 5.0  # Driver-reported utilization of an idle GPU.


@dataclass
class NoticeWatch:
    """A repeated look at all runs and services; stores since when GPUs are idle."""

    journal: Journal
    say: Say
    looked_at: float = 0.0
    idle_since: dict[str, float] = field(default_factory=dict)

    def send_due_notices(self, settings: Settings) -> None:
        """Look at all runs and services, and send the due notices; retry a failed query in the next look."""
        if time.monotonic() - self.looked_at < EVERY_S:
            return
        for op in runs_to_watch(self.journal, settings):
            try:
                self._check_run(op, settings)
            except Exception as error:  # An error in a run must not stop the looks at the others.
                self.say(f"{op.run}: {describe(error)}")
        for service in service_rows.list_services(self.journal) if hooks.for_all(settings) else ():
            try:
                for notice in of_service(service.name, service_state.parse_observed(service.seen)):
                    send_now(notice, hooks.for_all(settings), settings, self.say, aside=True)
            except Exception as error:
                self.say(f"{service.name}: {describe(error)}")
        for problem in outbox.deliver(settings):
            self.say(problem)
        self.looked_at = time.monotonic()

    def _check_run(self, op: Op, settings: Settings) -> None:
        vendor = registry.provider(settings, op.vendor)
        seen = observation.observe_pod(op, vendor)
        if seen.verdict and not vendor.is_rented and not op.outlives_run:
            # Otherwise the process that follows the run settles the row.
            if not self.journal.leases.holder(keeper_lease(op.run)):
                settle(self.journal, settings, self.say, [op.token])
            return
        now = time.time()
        if _percents(seen.progress) and max(_percents(seen.progress)) <= IDLE_PERCENT:
            self.idle_since.setdefault(op.token, now)
        else:
            self.idle_since.pop(op.token, None)
        idle_s = (now - self.idle_since.get(op.token, now)) * seen.clock_scale
        for notice in (*of_run(op, seen, read_clocks(), idle_s), *self._forecast_notices(op, seen, settings)):
            send_now(notice, names_of(op, settings), settings, self.say, aside=True)

    def _forecast_notices(self, op: Op, seen: Observation, settings: Settings) -> Iterator[Notice]:
        """Yield a notice if the forecast of the run exceeds the limits."""
        if seen.verdict or not is_comparable(op, seen.progress):
            return
        if found := estimate_time_left(self.journal.ops(run=op.run), seen.progress, settings):
            rows = run_rows.rows_of(op.run, run_rows.size_of(op), self.journal)
            if beyond := forecast_excess(op, rows, found[0], read_clocks(), seen.clock_scale):
                yield of_forecast(op, beyond)


def of_forecast(op: Op, beyond: BeyondLimit) -> Notice:
    """Return the notice for a run that will probably exceed a limit, one notice per limit."""
    return Notice(
        subject=op.run,
        event="beyond limit",
        key=f"{op.token} {spend.limit_s(op):.0f}",
        note=beyond.words,
        cost_micro_usd=beyond.micro_usd,
    )


def of_run(op: Op, seen: Observation, now: Clocks, idle_s: float = 0.0) -> Iterator[Notice]:
    """Yield the notices about an active run. `idle_s` is the observed idle time of all GPUs, by the run's clock."""
    limit_s, left_s = spend.limit_s(op), spend.left_s(op, now, seen.clock_scale)
    guard = seen.guard
    if limit_s is None and guard.get("limit_s"):
        limit_s, left_s = guard["limit_s"], max(0.0, guard["limit_s"] - guard.get("elapsed_s", 0.0))
    if limit_s and left_s is not None and 1 - left_s / limit_s >= NEAR and not seen.verdict:
        note = f"{1 - left_s / limit_s:.0%} of the limit is used; the run ends in {duration(left_s)}"
        if op.vendor != "local":
            note += f"; to continue after the end: inv resume {op.run} --spend-limit USD"
        cost = spend.spent(op, now, seen.clock_scale)
        yield Notice(
            subject=op.run, event="near limit", key=f"{op.token} {limit_s:.0f}", note=note, cost_micro_usd=cost
        )
    idle_s = max(idle_s, guard.get("idle_s") or 0.0)
    if idle_s >= IDLE_S and not seen.verdict:
        note = f"for {duration(idle_s)}; see: inv logs {op.run}, or end the run: inv down {op.run}"
        yield Notice(subject=op.run, event="idle", key=op.token, note=note)


def of_service(name: str, seen: ServiceRecord) -> Iterator[Notice]:
    """Yield a notice for each unhealthy state of each replica of a service."""
    for one in seen.members:
        if one.state in ILL:
            state = one.state.value.lower().replace("_", " ")
            note = f"replica {one.number} is {state}{f': {one.why}' if one.why else ''}; see: inv serve.status {name}"
            yield Notice(subject=name, event="unhealthy", key=f"{one.number} {one.state.value}", note=note)


def _percents(progress: Mapping[str, Any]) -> list[float]:
    """Return the utilization of each GPU in percent; [] if any value is unknown."""
    gpus = (progress.get("machine") or {}).get("gpus") or []
    percents = [one.get("percent") for one in gpus]
    return [float(one) for one in percents] if all(one is not None for one in percents) else []
