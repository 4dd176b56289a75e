"""Notices about the life of a run, for the run's subscribers.

A journal row and an event become notices in the outbox, followed by a first attempt to send; `say` receives problems.
The functions raise no exceptions for failed notices: a run never fails because of a notice.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from infra.agent.limits import read_clocks
from infra.errors import in_words
from infra.ledger import cost
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.notices import hooks, outbox
from infra.notices.outbox import Notice
from infra.notices.send import PATIENCE_S
from infra.settings import VENDORS, Settings
from infra.units import duration

Say = Callable[[str], None]
NOTHING: Mapping[str, Any] = MappingProxyType({})
SENDER = "notices"  # name of the sender threads
QUIET_S = 2.0  # seconds of waiting before a message


def names_of(op: Op, settings: Settings) -> tuple[str, ...]:
    """Return the hooks of a run: hooks for all notices, then the hooks of the run's launch."""
    own = ""
    if op.asked:
        own = json.loads(op.asked).get("meant", {}).get("notify") or ""
    return tuple(dict.fromkeys((*hooks.for_all(settings), *hooks.split(own))))


def tell(notice: Notice, names: tuple[str, ...], settings: Settings, say: Say, *, aside: bool = False) -> None:
    """Write a notice for the named hooks and try to send the notice at once.

    With `aside`, return before the notice is sent. Otherwise wait for all sender threads, which would end with the
    process.
    """
    try:
        if names and outbox.put(notice, names, settings):
            sender = threading.Thread(target=_deliver, args=(notice, settings, say), name=SENDER, daemon=True)
            sender.start()
            if not aside:
                _wait(notice, say)
    except Exception as error:  # for example a full disk
        say(f"notice of {notice.subject}: {in_words(error)}")


def _wait(notice: Notice, say: Say) -> None:
    senders = [one for one in threading.enumerate() if one.name == SENDER]
    until = time.monotonic() + QUIET_S
    for sender in senders:
        sender.join(max(0.0, until - time.monotonic()))
    if any(sender.is_alive() for sender in senders):
        say(f"notice of {notice.subject}: a hook has not answered yet; waiting up to {duration(PATIENCE_S)}")
    for sender in senders:
        sender.join()


def _deliver(notice: Notice, settings: Settings, say: Say) -> None:
    try:
        for problem in outbox.deliver(settings):
            say(problem)
    except Exception as error:
        say(f"notice of {notice.subject}: {in_words(error)}")


def tell_end(
    op: Op,
    state: str,
    journal: Journal,
    settings: Settings,
    say: Say,
    verdict: Mapping[str, Any] = MappingProxyType({}),
    aside: bool = False,
) -> None:
    """Send a notice about the end of a run or the loss of a pod, with the total cost of the run's pods.

    The time of `verdict`, if given, is part of the notice's key, so a resumed run sends a new notice at the next end.
    """
    scale = settings.clock_scale if op.vendor in VENDORS else 1.0
    names = names_of(op, settings) + ((hooks.OLD,) if settings.notify else ())
    if not names:
        return
    total = cost.total(journal.ops(run=op.run), journal.told("vendor"), read_clocks(), clock_scale=scale)
    key = f"{op.token} {int(verdict.get('at') or op.ended_at or 0)}"
    note = str(verdict.get("reason") or op.reason)
    notice = Notice(subject=op.run, event=state, key=key, note=note, cost_micro_usd=total)
    tell(notice, names, settings, say, aside=aside)


def tell_back(op: Op, settings: Settings, say: Say) -> None:
    """Send a notice about a recovered run without waiting."""
    note = f"on {op.vendor}, recovery {op.recoveries}"
    tell(
        Notice(subject=op.run, event="recovered", key=str(op.recoveries), note=note),
        names_of(op, settings),
        settings,
        say,
        aside=True,
    )
