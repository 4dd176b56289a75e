"""Following one run to its end: a pod's files are polled, and yielded as they change.

In: a journal row. Out: (progress, verdict) pairs, the last one with a verdict. It only reads: whoever stops following
stops nothing.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.sight import Seen, is_alive, words_of
from infra.transport.protocol import Lost, TimedOut, Transport, Unreachable
from infra.units import duration

POLL_S = 0.25
RETRY_S = 2.0
DOUBT_AFTER_S = 5.0  # an agent at work writes its progress twice a second


def follow(
    op: Op, journal: Journal, transport: Transport, elsewhere: Callable[[], dict[str, Any]] = dict
) -> Iterator[Seen]:
    """Yield at every look, about four times a second, until the run has its verdict.

    A pod that does not answer is asked again for as long as its row is live: the run goes on there, and `unreachable`
    in the progress says since when nothing is known; `elsewhere` may then have the verdict of its other nodes.
    SlipwayError: neither its guard nor its agent is running, or its pod was ended by somebody else.
    """
    doubted_at = heard_at = time.monotonic()
    progress: dict[str, Any] = {}
    while True:
        try:
            progress, verdict = words_of(op, transport)
            heard_at = time.monotonic()
        except (Lost, TimedOut, Unreachable) as error:
            silent_s = time.monotonic() - heard_at
            verdict = elsewhere()
            yield {**progress, "unreachable": f"no answer for {duration(silent_s)}: {error}"}, verdict
            if verdict:
                return
            row = journal.op(op.token)
            if not row.is_live or row.detached:  # the latter: another process has ended it
                raise SlipwayError(f"{op.run} was ended meanwhile; run: inv status") from None
            time.sleep(RETRY_S)
            continue
        yield progress, verdict
        if verdict:
            return
        if time.time() - progress.get("updated_at", 0.0) < DOUBT_AFTER_S:
            doubted_at = time.monotonic()
        elif time.monotonic() - doubted_at > DOUBT_AFTER_S:
            if not journal.op(op.token).is_live:
                raise SlipwayError(f"{op.run} was ended meanwhile; run: inv status")
            if not is_alive(op, transport) and not words_of(op, transport)[1]:
                raise SlipwayError(
                    f"{op.run}: neither its guard nor its agent is running; resume it: inv resume {op.run}"
                )
            doubted_at = time.monotonic()
        time.sleep(POLL_S)
