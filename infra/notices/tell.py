"""Notices of what happens to a run, for whoever has subscribed.

In: a journal row and what became of it. Out: notices in the outbox, and one try to send them; `say` hears of trouble.
Nothing is raised: a run does not suffer from what is told of it.
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
SENDER = "notices"  # name of the threads that send
QUIET_S = 2.0  # a longer wait is told of


def names_of(op: Op, settings: Settings) -> tuple[str, ...]:
    """Return the names of the hooks that are told of this run: those of its launch, and those told of everything."""
    own = ""
    if op.asked:
        own = json.loads(op.asked).get("meant", {}).get("notify") or ""
    return tuple(dict.fromkeys((*hooks.for_all(settings), *hooks.split(own))))


def tell(notice: Notice, names: tuple[str, ...], settings: Settings, say: Say, *, aside: bool = False) -> None:
    """Write a notice for hooks, and try to send it at once.

    aside: do not wait until it is sent. Without it, whatever this process sends is waited for, as it ends with it.
    """
    try:
        if names and outbox.put(notice, names, settings):
            sender = threading.Thread(target=_deliver, args=(notice, settings, say), name=SENDER, daemon=True)
            sender.start()
            if not aside:
                _wait(notice, say)
    except Exception as error:  # a full disk, say
        say(f"notice of {notice.subject}: {in_words(error)}")


def _wait(notice: Notice, say: Say) -> None:
    senders = [one for one in threading.enumerate() if one.name == SENDER]
    until = time.monotonic() + QUIET_S
    for sender in senders:
        sender.join(max(0.0, until - time.monotonic()))
    if any(sender.is_alive() for sender in senders):
        say(f"notice of {notice.subject}: a hook has not answered yet, and gets {duration(PATIENCE_S)}")
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
    """Tell how a run ended, or that it lost its pod, and what all its pods have cost.

    `verdict`: where there is one; by its time, a run that was resumed and ends again is told again.
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
    """Tell that a run was brought back, which goes on meanwhile."""
    note = f"on {op.vendor}, recovery {op.recoveries}"
    tell(Notice(subject=op.run, event="recovered", key=str(op.recoveries), note=note), names_of(op, settings),
         settings, say, aside=True)  # fmt: skip
