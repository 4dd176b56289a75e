"""The timeline of a run: marks for its curves, and its cost at each moment.

In: its rows in the journal, and how it is shown now. Out: times with words; points of a curve. Asks nobody.
"""

from collections.abc import Iterator, Mapping, Sequence

from infra.agent.limits import Clocks
from infra.ledger import spend
from infra.ledger.cost import ledger
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs.sight import folder_of

SAVED, LOST, RECOVERED = "save", "lost", "recovered"
Mark = tuple[float, str, str]  # UTC epoch seconds, a kind, words


def marks_of(op: Op, view: PodView | None, journal: Journal) -> list[Mark]:
    """Return the events of a run with their times: saved checkpoints, lost pods, recoveries."""
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
    """Return minutes since the first pod was asked for, and the US dollars that all of them had cost by then.

    Both by the vendor's clock, which runs `scale` times as fast as ours. The last point is the sum of the ledger, to
    which each pod adds evenly while it is there. `told`: as the journal has it. [] where nothing costs money.
    """
    costs = {one.token: one.micro_usd for one in ledger(rows, told, now, clock_scale=scale) if one.micro_usd}
    spans = [(*_span(op, now, scale), costs[op.token]) for op in rows if op.token in costs]
    if not spans:
        return []
    first = min(begin for begin, _, _ in spans)
    moments = sorted({at for begin, end, _ in spans for at in (begin, end)})
    return [((at - first) / 60, sum(_by(at, *span) for span in spans) / 1e6) for at in moments]


def _by(at: float, begin: float, end: float, micro_usd: int) -> float:
    """Return what a pod had cost by a moment."""
    return float(micro_usd) if at >= end else micro_usd * max(0.0, at - begin) / (end - begin)


def _span(op: Op, now: Clocks, scale: float) -> tuple[float, float]:
    """Return from when until when a pod cost, in seconds of the vendor's clock."""
    end = float(op.sent_at or op.intent_at) * scale + spend.since_request_s(op, now, scale)
    return end - spend.age_s(op, now, scale), end


def _checkpoints_here(op: Op) -> Iterator[tuple[str, float]]:
    """Yield the checkpoints that lie on a pod of this machine."""
    if op.vendor != "local" or not op.address:
        return
    for manifest in sorted((folder_of(op).work / "checkpoints").glob("*/step-*/MANIFEST.json")):
        yield f"{manifest.parts[-3]}/{manifest.parts[-2]} is saved", manifest.stat().st_mtime
