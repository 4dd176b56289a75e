"""Pods past their hard limit: found in the journal by arithmetic, ended whatever lease is held on them, and told.

    rows -> is past its limit -> a last look at the pod -> end -> OverLimit

A limit is kept by the pod's guard and by the vendor's timer. A guard may hang with its machine, a timer may not exist,
and a process that holds the lease of a run may be frozen. So whoever reads a row compares the most that its pod may
have cost with its limit, and ends it. Two that look at once end it once: the row moves on for one of them.
"""

import contextlib
from dataclasses import dataclass

from infra.agent.limits import Clocks, read_clocks
from infra.errors import SlipwayError, in_words
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import Excess
from infra.machines.host_memory import at_once
from infra.money import per_hour
from infra.rehearsal import world_files
from infra.runs import sight
from infra.runs.keepers.due_ends import LAST_LOOK_S, is_being_concluded, is_past_limit, last_look
from infra.runs.run_home import RunHome
from infra.runs.sight import Sight
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import duration


@dataclass(frozen=True)
class OverLimit:
    """A pod that was found past its limit, and what became of it."""

    op: Op
    """Row of the journal, as last read."""
    excess: Excess
    """Time and money beyond the limit, when the pod was found."""
    heard_s: float | None = None
    """Age of the last report of its guard, by its vendor's clock; None = there is none."""
    was_gone: bool = False
    """True if its vendor showed no such machine any more when it was found: another end had come before."""
    problem: str = ""
    """Reason why the pod is not proven gone, where its row is live."""

    @property
    def is_ended(self) -> bool:
        return not self.op.is_live

    @property
    def had_to_be_ended(self) -> bool:
        """Return whether the machine still ran when it was found, or may have."""
        return not (self.is_ended and self.was_gone)

    @property
    def words(self) -> str:
        """Return all of it in one sentence."""
        if not self.had_to_be_ended:
            said = "the limit has passed, and the machine was gone already; its cost is counted until now, at most"
            return f"{self.op.run}: {heard_words(self.heard_s)}; {said}"
        over = f"over its limit by {self.excess.words}" if self.excess.words else "at its limit"
        if self.is_ended:
            return f"{self.op.run}: {heard_words(self.heard_s)}; {over}; it was ended, and nothing of it bills"
        cost = f" at {per_hour(self.op.rate)}" if self.op.rate else ""
        why = f" ({self.problem})" if self.problem else ""
        return f"{self.op.run}: {heard_words(self.heard_s)}; {over}; it is not proven gone{why}, and may bill{cost}"


def heard_words(heard_s: float | None) -> str:
    """Return when its guard was last heard, in words."""
    return "never heard" if heard_s is None else f"last heard {duration(heard_s)} ago"


def end_over_limit(journal: Journal, settings: Settings, tell: Say) -> list[OverLimit]:
    """End every rented pod that is past its limit; return each of them, those included that could not be ended.

    Nothing is asked of anybody while there is none.
    """
    rows = past_limit(journal, settings)
    if not rows:
        return []
    now = read_clocks()
    looks = at_once(lambda op: last_look(op, settings), rows, 2 * LAST_LOOK_S)
    sights = [one if isinstance(one, Sight) else Sight(why=str(one)) for one in looks]
    return [_end(op, seen, journal, settings, tell, now) for op, seen in zip(rows, sights, strict=True)]


def past_limit(journal: Journal, settings: Settings) -> list[Op]:
    """Return the live rows of rented pods that are past their limit; none once the market of a rehearsal has ended."""
    found = [op for op in journal.ops(live=True) if is_past_limit(op, settings)]
    return [] if found and world_files.has_ended(settings.rehearsal) else found


def _end(op: Op, seen: Sight, journal: Journal, settings: Settings, tell: Say, now: Clocks) -> OverLimit:
    from infra.runs.settle import end_past_limit  # every command looks for such a pod, and few find one

    heard_s, problem = age_of_report(op, seen, settings, now), ""
    try:
        if is_being_concluded(op, seen, journal, settings):
            problem = "the process that keeps it brings its results here first"
        end_past_limit(op, seen, journal, settings, tell, waits=False)
    except Fenced:
        problem = "another process is ending it"
    except Exception as error:  # an error about one must not keep the others from being ended
        problem = in_words(error)
    return OverLimit(
        op=journal.op(op.token), excess=spend.excess(op, now, settings.clock_scale), heard_s=heard_s,
        was_gone=seen.is_there is False, problem=problem,
    )  # fmt: skip


def age_of_report(op: Op, seen: Sight, settings: Settings, now: Clocks) -> float | None:
    """Return how old the last report of a pod's guard is, by its vendor's clock; None where there is none.

    A pod that does not answer is as old as what was brought here of it.
    """
    guard = seen.guard
    if not guard:
        with contextlib.suppress(SlipwayError, OSError, ValueError):
            guard = sight.of(op, reports.at_home(op, RunHome.of(op.run, settings.homes)))["guard"]
    real_s = sight.report_age_s(guard, now)
    return None if real_s is None else real_s * settings.clock_scale
