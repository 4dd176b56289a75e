"""Detection and end of pods past their hard limit, regardless of leases, with a report for the user.

    rows -> past the limit -> a last look at the pod -> end -> OverLimit

The pod's guard and the vendor's timer enforce a limit. A guard may hang with the machine, a vendor may have no timer,
and the process with the run's lease may be frozen. So every reader of a row compares the pod's maximum cost and time
with the limit, and ends a pod past the limit. Concurrent processes end a pod once, because only one process can advance
the row.
"""

import contextlib
from dataclasses import dataclass

from infra.agent.limits import Clocks, read_clocks
from infra.errors import SlipwayError, describe
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import LimitOverrun
from infra.machines.host_memory import map_parallel
from infra.runs import observation
from infra.runs.keepers.due_ends import LAST_LOOK_S, final_observation, is_being_concluded, is_past_limit
from infra.runs.observation import Observation
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import duration, per_hour


@dataclass(frozen=True)
class OverLimit:
    """A pod found past its limit, and the result of ending the pod."""

    op: Op
    """Last read journal row."""
    excess: LimitOverrun
    """Time and money beyond the limit, when the pod was found."""
    heard_s: float | None = None
    """Age of the guard's last report, by the vendor's clock; None = no report."""
    was_gone: bool = False
    """True if the vendor no longer listed the machine when found: the pod had already ended by other means."""
    problem: str = ""
    """Reason why the pod of a live row is not proven gone."""

    @property
    def is_ended(self) -> bool:
        return not self.op.is_live

    @property
    def was_running(self) -> bool:
        """Return True if the machine still ran when found, or may have run."""
        return not (self.is_ended and self.was_gone)

    @property
    def words(self) -> str:
        """Return the report as a sentence."""
        if not self.was_running:
            said = "the limit has passed, and the machine was already gone; the cost is counted until now, at most"
            return f"{self.op.run}: {heard_words(self.heard_s)}; {said}"
        over = f"over its limit by {self.excess.description}" if self.excess.description else "at its limit"
        if self.is_ended:
            return f"{self.op.run}: {heard_words(self.heard_s)}; {over}; the pod was ended, and nothing of it bills"
        cost = f" at {per_hour(self.op.rate)}" if self.op.rate else ""
        why = f" ({self.problem})" if self.problem else ""
        return (
            f"{self.op.run}: {heard_words(self.heard_s)}; {over}; the pod is not proven gone{why}, and may bill{cost}"
        )


def heard_words(heard_s: float | None) -> str:
    """Return a display text for the time of the guard's last report."""
    return "never heard" if heard_s is None else f"last heard {duration(heard_s)} ago"


def end_over_limit(journal: Journal, settings: Settings, tell: Say) -> list[OverLimit]:
    """End every rented pod past its limit; return all these pods, including failures to end a pod.

    Without such a pod, no machine or vendor is contacted.
    """
    rows = past_limit(journal, settings)
    if not rows:
        return []
    now = read_clocks()
    looks = map_parallel(lambda op: final_observation(op, settings), rows, 2 * LAST_LOOK_S)
    sights = [one if isinstance(one, Observation) else Observation(why=str(one)) for one in looks]
    return [_end(op, seen, journal, settings, tell, now) for op, seen in zip(rows, sights, strict=True)]


def past_limit(journal: Journal, settings: Settings) -> list[Op]:
    """Return the live rows of rented pods past a limit; [] once the simulated market of a rehearsal has ended."""
    found = [op for op in journal.ops(live=True) if is_past_limit(op, settings)]
    if not found:
        return []
    from infra.rehearsal import world_files  # A late import, as in `_end`.

    return [] if world_files.has_ended(settings.rehearsal) else found


def _end(op: Op, seen: Observation, journal: Journal, settings: Settings, tell: Say, now: Clocks) -> OverLimit:
    from infra.runs.journal_upkeep import end_past_limit  # A late import: every command looks, few find such a pod.

    heard_s, problem = age_of_report(op, seen, settings, now), ""
    try:
        if is_being_concluded(op, seen, journal, settings):
            problem = "the process that keeps the run first copies the results to this machine"
        end_past_limit(op, seen, journal, settings, tell, waits=False)
    except Fenced:
        problem = "a second process is ending the pod"
    except Exception as error:  # An error of a pod must not stop the others.
        problem = describe(error)
    return OverLimit(
        op=journal.op(op.token),
        excess=spend.excess(op, now, settings.clock_scale),
        heard_s=heard_s,
        was_gone=seen.exists is False,
        problem=problem,
    )


def age_of_report(op: Op, seen: Observation, settings: Settings, now: Clocks) -> float | None:
    """Return the age of the last report of a pod's guard, by the vendor's clock; None without a report.

    For a silent pod, use the downloaded report.
    """
    guard = seen.guard
    if not guard:
        with contextlib.suppress(SlipwayError, OSError, ValueError):
            home = RunHome.for_run(op.run, settings.homes)
            guard = observation.own_reports(op, reports.read_local(op, home))["guard"]
    real_s = observation.report_age_s(guard, now)
    return None if real_s is None else real_s * settings.clock_scale
