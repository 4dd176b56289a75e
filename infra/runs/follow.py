"""Follow one run to the end by polling the files of the pod.

`follow` takes a journal row and yields (progress, verdict) pairs; the last pair has a verdict. The function only reads,
so an interrupted caller stops no work.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.sight import Seen, is_alive, words_of
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable
from infra.units import duration

POLL_S = 0.25
RETRY_S = 2.0
DOUBT_AFTER_S = 5.0  # An active agent writes progress twice a second.


def follow(
    op: Op, journal: Journal, transport: Transport, elsewhere: Callable[[], dict[str, Any]] = dict
) -> Iterator[Seen]:
    """Yield (progress, verdict) about four times a second until the run has a verdict.

    While a silent pod has a live row, keep polling: the run may continue on the pod. The `unreachable` entry of the
    progress then says for how long, and `elsewhere` may return the verdict of other nodes. Raises SlipwayError if
    neither guard nor agent is running, or if the pod was ended meanwhile.
    """
    doubted_at = heard_at = time.monotonic()
    progress: dict[str, Any] = {}
    while True:
        try:
            progress, verdict = words_of(op, transport)
            heard_at = time.monotonic()
        except (ConnectionLost, TimedOut, Unreachable) as error:
            silent_s = time.monotonic() - heard_at
            verdict = elsewhere()
            yield {**progress, "unreachable": f"no answer for {duration(silent_s)}: {error}"}, verdict
            if verdict:
                return
            row = journal.op(op.token)
            if not row.is_live or row.detached:  # A detached row belongs to a replaced pod.
                raise SlipwayError(f"{op.run} was ended in the meantime; run: inv status") from None
            time.sleep(RETRY_S)
            continue
        yield progress, verdict
        if verdict:
            return
        if time.time() - progress.get("updated_at", 0.0) < DOUBT_AFTER_S:
            doubted_at = time.monotonic()
        elif time.monotonic() - doubted_at > DOUBT_AFTER_S:
            if not journal.op(op.token).is_live:
                raise SlipwayError(f"{op.run} was ended in the meantime; run: inv status")
            if not is_alive(op, transport) and not words_of(op, transport)[1]:
                raise SlipwayError(f"{op.run}: neither guard nor agent is running; resume the run: inv resume {op.run}")
            doubted_at = time.monotonic()
        time.sleep(POLL_S)
