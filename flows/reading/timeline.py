"""The timeline of a run: marks for the curves, and the cost over time.

The input is the journal rows of the run and the current view; the result is timed events and points of a curve. No
vendor or pod is queried.
"""

from collections.abc import Iterator, Mapping, Sequence

from infra.agent.limits import Clocks
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import ledger
from infra.records import PodView
from infra.runs.observation import folder_of

SAVED, LOST, RECOVERED = "save", "lost", "recovered"
Mark = tuple[float, str, str]  # UTC epoch seconds, kind, text


def marks_of(op: Op, view: PodView | None, journal: Journal) -> list[Mark]:
    """Return the events of a run with times: saved checkpoints, lost pods, recoveries."""
    found = [(float(at), SAVED, f"{name} is in the store") for name, at in (view.in_store if view else {}).items()]
    found += [(float(at), SAVED, name) for name, at in _checkpoints_here(op)]
    rows = [one for one in journal.ops(run=op.run) if one.rank == 0 or one.detached]
    for one in rows[:-1]:
        at = one.ended_at or one.del_requested_at or one.first_absent_at
        if at:
            found.append((float(at), LOST, f"its pod was lost: {one.reason or 'it was gone'}"))
    found += [(at, RECOVERED, "brought back") for at in journal.recovered_at(op.run)]
    return sorted(found)


def cost_curve(
    rows: Sequence[Op], told: Mapping[str, tuple[int, int]], now: Clocks, scale: float
) -> list[tuple[float, float]]:
    """Return points (minutes since the first pod request, cumulative US dollars of all pods).

    Times use the clock of the vendor, which runs `scale` times as fast as the local clock. Each pod adds its ledger
    cost evenly over its lifetime, so the last point equals the sum in the ledger. `told`: vendor bills in the journal.
    [] for a free run.
    """
    costs = {one.token: one.micro_usd for one in ledger(rows, told, now, clock_scale=scale) if one.micro_usd}
    spans = [(*_span(op, now, scale), costs[op.token]) for op in rows if op.token in costs]
    if not spans:
        return []
    first = min(begin for begin, _, _ in spans)
    moments = sorted({at for begin, end, _ in spans for at in (begin, end)})
    return [((at - first) / 60, sum(_by(at, *span) for span in spans) / 1e6) for at in moments]


def _by(at: float, begin: float, end: float, micro_usd: int) -> float:
    """Return the cost of a pod up to a time, in micro-USD."""
    return float(micro_usd) if at >= end else micro_usd * max(0.0, at - begin) / (end - begin)


def _span(op: Op, now: Clocks, scale: float) -> tuple[float, float]:
    """Return the start and end of the billed time of a pod, in seconds on the vendor's clock."""
    end = float(op.sent_at or op.intent_at) * scale + spend.since_request_s(op, now, scale)
    return end - spend.age_s(op, now, scale), end


def _checkpoints_here(op: Op) -> Iterator[tuple[str, float]]:
    """Yield the checkpoints on a local pod with their times."""
    if op.vendor != "local" or not op.address:
        return
    for manifest in sorted((folder_of(op).work / "checkpoints").glob("*/step-*/MANIFEST.json")):
        yield f"{manifest.parts[-3]}/{manifest.parts[-2]} is saved", manifest.stat().st_mtime
