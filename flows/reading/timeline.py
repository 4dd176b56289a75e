"""The timeline of a run: marks for its curves, and its cost at each moment.

In: its rows in the journal, and how it is shown now. Out: times with words; points of a curve. Asks nobody.
"""

from collections.abc import Iterable, Iterator, Sequence

from infra.agent.limits import Clocks
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.life_cycle import FAILED
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs.pods import folder_of

SAVED, LOST, RECOVERED = "save", "lost", "recovered"
Mark = tuple[float, str, str]  # UTC epoch seconds, a kind, words


def marks_of(op: Op, view: PodView | None, journal: Journal) -> list[Mark]:
    """Return the events of a run with their times: saved checkpoints, lost pods, recoveries."""
    found = [(float(at), SAVED, f"{name} is in the store") for name, at in (view.in_store if view else {}).items()]
    found += [(float(at), SAVED, name) for name, at in _checkpoints_here(op)]
    rows = [one for one in journal.ops(run=op.run) if one.slot == 0 or one.slot < 0]
    for one in rows[:-1]:
        at = one.ended_at or one.del_requested_at or one.first_absent_at
        if at:
            found.append((float(at), LOST, f"its pod was lost: {one.reason or 'it was gone'}"))
    found += [(at, RECOVERED, "brought back") for at in journal.recovered_at(op.run)]
    return sorted(found)


def cost_curve(rows: Sequence[Op], now: Clocks, scale: float) -> list[tuple[float, float]]:
    """Return minutes since the first pod was asked for, and the US dollars that all of them had cost by then.

    Both by the vendor's clock, which runs `scale` times as fast as ours. [] where nothing costs money.
    """
    spans = list(_spans(rows, now, scale))
    if not spans:
        return []
    first = min(begin for begin, _, _ in spans)
    moments = sorted({at for begin, end, _ in spans for at in (begin, end)} | {first})
    points = []
    for at in moments:
        micro_usd = sum(rate * max(0.0, min(at, end) - begin) / 3600 for begin, end, rate in spans)
        points.append(((at - first) / 60, micro_usd / 1e6))
    return points


def _spans(rows: Iterable[Op], now: Clocks, scale: float) -> Iterator[tuple[float, float, int]]:
    """Yield from when until when each pod cost, in seconds of the vendor's clock, and how much in an hour."""
    for op in rows:
        if op.rate and op.state != FAILED:
            end = float(op.sent_at or op.intent_at) * scale + spend.since_request_s(op, now, scale)
            yield end - spend.age_s(op, now, scale), end, op.rate


def _checkpoints_here(op: Op) -> Iterator[tuple[str, float]]:
    """Yield the checkpoints that lie on a pod of this machine."""
    if op.vendor != "local" or not op.address:
        return
    for manifest in sorted((folder_of(op).work / "checkpoints").glob("*/step-*/MANIFEST.json")):
        yield f"{manifest.parts[-3]}/{manifest.parts[-2]} is saved", manifest.stat().st_mtime
