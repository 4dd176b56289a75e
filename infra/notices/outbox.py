"""Notices about the life of a run, and their outbox: a file per notice and hook beside the journal.

    notify_end  a journal row and an event become notices in the outbox, followed by a first attempt to send
    put         never overwrites an existing file: a repeated event is sent once
    deliver     a single process sends each notice; a failed attempt is retried with backoff, for a day

A run never fails because of a notice. The files hold no secrets: a record holds the hook's name, and the target is
resolved on sending. A crash between sending a notice and recording the success sends the notice twice.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError, describe
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.notices import hooks
from infra.notices.hooks import PATIENCE_S
from infra.settings import VENDORS, Settings
from infra.units import dollars, duration
from store import local_files
from store.backoff import Backoff

BACKOFF = Backoff(first_s=5.0, longest_s=900.0)
GIVE_UP_S = 86_400.0
CLAIM_S = PATIENCE_S + 10.0  # then a second process may claim the notice
LOCK_WAIT_S = 5.0
AT_ONCE = 8  # notices sent in parallel
KEEP_S = 40 * 86_400.0  # afterwards an identical notice may be sent again
Say = Callable[[str], None]
NOTHING: Mapping[str, Any] = MappingProxyType({})
SENDER = "notices"  # name of the sender threads
QUIET_S = 2.0  # seconds of waiting before a message


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A message about a run, a service or an audit."""

    subject: str
    """A run, a service, or `audit`."""
    event: str
    """Kind of event.

    succeeded, failed, stopped, limit, lost, preempted, recovered, near limit, beyond limit, idle, unhealthy, orphan,
    audit, given up.
    """
    key: str
    """Distinguishes notices with the same subject and event; each key is sent once."""
    note: str = ""
    cost_micro_usd: int = 0

    @property
    def message_fields(self) -> dict[str, str]:
        """Return the fields of the message."""
        cost = dollars(self.cost_micro_usd)
        return {"run": self.subject, "state": self.event, "cost_usd": cost, "note": self.note}


def folder(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-notices")


def put(notice: Notice, names: Iterable[str], settings: Settings) -> int:
    """Write a notice for the named hooks and return the number of new notices."""
    place, new = folder(settings), 0
    for name in dict.fromkeys(names):
        whole = "\0".join((name, notice.subject, notice.event, notice.key))
        path = place / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.json"
        if path.exists():
            continue
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = place / f".{path.stem}.{os.getpid()}.{threading.get_native_id()}.draft"
        record: dict[str, Any] = {"hook": name, "said": notice.message_fields, "at": time.time()}
        record |= {"tries": 0, "next_at": 0.0, "sent_at": None}
        local_files.replace(draft, json.dumps(record).encode(), 0o600)
        try:
            os.link(draft, path)  # atomic, and fails if the notice exists
            new += 1
        except FileExistsError:  # written by a concurrent process
            continue
        finally:
            draft.unlink(missing_ok=True)
    return new


def records(settings: Settings) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path and record of every notice, sent or not."""
    for path in sorted(folder(settings).glob("*.json")):
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or damaged
            yield path, json.loads(path.read_bytes())


def waits(settings: Settings) -> bool:
    """Return whether any notice is still pending."""
    return any(one["sent_at"] is None and not one.get("given_up") for _, one in records(settings))


def deliver(settings: Settings) -> list[str]:
    """Send all due notices and return a message for each failed first attempt."""
    said: list[str] = []
    tried = set[Path]()
    while due := _claim(settings, tried):
        threads = [threading.Thread(target=_try, args=(*one, settings, said), daemon=True) for one in due]
        for thread in threads:  # a hanging hook does not delay the others
            thread.start()
        for thread in threads:
            thread.join()
        tried |= {path for path, _ in due}
    return said


def _claim(settings: Settings, tried: set[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Claim up to AT_ONCE due notices for CLAIM_S seconds and return them; delete old finished notices."""
    place, due = folder(settings), list[tuple[Path, dict[str, Any]]]()
    if not place.is_dir():
        return due
    with contextlib.suppress(_Busy), local_files.holding_lock(place / "lock", _Busy(), LOCK_WAIT_S):
        for path, one in records(settings):
            now = time.time()
            if one["sent_at"] is not None or one.get("given_up"):
                if now - one["at"] > KEEP_S:
                    path.unlink(missing_ok=True)
            elif one["next_at"] <= now and path not in tried and len(due) < AT_ONCE:
                one["next_at"] = now + CLAIM_S
                _write(path, one)
                due.append((path, one))
    return due


def _try(path: Path, one: dict[str, Any], settings: Settings, said: list[str]) -> None:
    """Send a notice and record the result; append the problem of a first failed attempt to `said`."""
    now, problem = time.time(), _send(one, settings)
    if problem and not one["tries"]:
        said.append(f"notice of {one['said']['run']} by {one['hook']}: {problem}; retrying")
    one["tries"] += 1
    one["next_at"] = time.time() + BACKOFF.wait_s(one["tries"])
    one |= {"problem": problem, "given_up": bool(problem) and now - one["at"] > GIVE_UP_S}
    one["sent_at"] = None if problem else time.time()
    _write(path, one)


def _write(path: Path, one: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # full disk: the notice may be sent again
        local_files.replace(path, json.dumps(one).encode(), 0o600)


def _send(one: dict[str, Any], settings: Settings) -> str:
    from infra.notices.sending import send  # loaded only for a notice

    try:
        return send(hooks.named(one["hook"], settings), one["said"])
    except UsageError as error:  # the hook was removed from .env
        return str(error)
    except Exception as error:  # a failing hook must not stop other notices
        return type(error).__name__


class _Busy(SlipwayError):
    """The lock of the outbox is in use."""


def names_of(op: Op, settings: Settings) -> tuple[str, ...]:
    """Return the hooks of a run: hooks for all notices, then the hooks of the run's launch."""
    own = ""
    if op.asked:
        own = json.loads(op.asked).get("meant", {}).get("notify") or ""
    return tuple(dict.fromkeys((*hooks.for_all(settings), *hooks.split(own))))


def send_now(notice: Notice, names: tuple[str, ...], settings: Settings, say: Say, *, aside: bool = False) -> None:
    """Write a notice for the named hooks and try to send the notice at once.

    With `aside`, return before the notice is sent. Otherwise wait for all sender threads, which would end with the
    process.
    """
    try:
        if names and put(notice, names, settings):
            sender = threading.Thread(target=_deliver, args=(notice, settings, say), name=SENDER, daemon=True)
            sender.start()
            if not aside:
                _wait(notice, say)
    except Exception as error:  # for example a full disk
        say(f"notice of {notice.subject}: {describe(error)}")


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
        for problem in deliver(settings):
            say(problem)
    except Exception as error:
        say(f"notice of {notice.subject}: {describe(error)}")


def notify_end(
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
    rows = [one for one in journal.ops() if one.run_of_nodes == op.run_of_nodes]
    total = spend.total(rows, journal.reported_costs("vendor"), read_clocks(), clock_scale=scale)
    key = f"{op.token} {int(verdict.get('at') or op.ended_at or 0)}"
    note = str(verdict.get("reason") or op.reason)
    notice = Notice(subject=op.run, event=state, key=key, note=note, cost_micro_usd=total)
    send_now(notice, names, settings, say, aside=aside)


def notify_recovered(op: Op, settings: Settings, say: Say) -> None:
    """Send a notice about a recovered run without waiting."""
    note = f"on {op.vendor}, recovery {op.recoveries}"
    send_now(
        Notice(subject=op.run, event="recovered", key=str(op.recoveries), note=note),
        names_of(op, settings),
        settings,
        say,
        aside=True,
    )
