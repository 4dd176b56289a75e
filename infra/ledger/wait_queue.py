"""The wait queue of launches: for the user's own machines and devices, first come, first served; or for an offer.

A turn ends with the process. A run has a whole machine or named GPUs; runs with different GPUs share
a machine. On this machine, runs without named GPUs share freely, but a waiting run wants the whole machine. A later
launch gets a machine before an earlier launch only if both fit on the machine. A turn that waits for a vendor's offer
blocks no other turn: each process searches alone, and the first process to find a matching offer rents, even if others
have waited longer.

    live rows, turns of living processes -> find_blocker -> reason for waiting, in words
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from infra.agent.host import may_share
from infra.agent.process import Identity, current_identity, is_alive
from infra.errors import Busy, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Leased, Op

HERE = "local"  # the provider with all pods on this machine; rows have no place
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class QueueTicket:
    """A place in the queue for a machine."""

    number: int
    run: str
    vendor: str
    places: tuple[str, ...]
    """Machines of which any will do; ("",) = this machine. For an offer, a place requested by no other launch."""
    devices: str
    since: int
    """UTC epoch seconds."""
    why: str = ""
    """Last reason for waiting given to the process, unless the journal already shows the reason."""


class QueuedBehind(Busy):
    """An earlier launch waits for the machine."""


class EndedInQueue(SlipwayError):
    """Another command ended the run during the wait."""


def read_devices(said: str, flag: str = "--devices", counted: str = "as nvidia-smi shows them") -> str:
    """Return the numbers of GPUs in order: `1,0` is `0,1`. Raise UsageError for invalid or repeated numbers.

    counted: how the flag counts GPUs, in words.
    """
    words = [word.strip() for word in said.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 4 for word in words):
        raise UsageError(f"{flag} {said}: expected the numbers of GPUs {counted}, such as 0,1")
    numbers = sorted(int(word) for word in words)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"{flag} {said}: a GPU is named twice")
    return ",".join(map(str, numbers))


def named(devices: str) -> str:
    """Return the held part of a machine, in words."""
    if not devices:
        return "it"
    return f"device{'s' if ',' in devices else ''} {devices}"


def enqueue(journal: Journal, run: str, vendor: str, places: Iterable[str], devices: str, why: str = "") -> QueueTicket:
    """Join the end of the queue, for the lifetime of this process. `why`: as for `note`."""
    me, now = current_identity(), int(time.time())
    with journal.writing():
        for number, *holder in journal.read("SELECT number, boot_id, pid, pid_starttime FROM turns"):
            if not is_alive(Identity(*holder)):
                journal.execute("DELETE FROM turns WHERE number = ?", number)
        (last,) = journal.read("SELECT coalesce(max(number), 0) FROM turns")[0]
        found = QueueTicket(last + 1, run, vendor, tuple(places), devices, now, why)
        values = (found.number, run, vendor, "\n".join(found.places), devices, now, why, me.boot_id, me.pid, me.started)
        journal.execute(f"INSERT INTO turns VALUES ({', '.join('?' * len(values))})", *values)
    return found


def note(journal: Journal, turn: QueueTicket, why: str) -> None:
    """Record a reason for waiting not shown by any row."""
    with journal.writing():
        journal.execute("UPDATE turns SET why = ? WHERE number = ?", why, turn.number)


def dequeue(journal: Journal, turn: QueueTicket) -> None:
    """Leave the queue."""
    with journal.writing():
        journal.execute("DELETE FROM turns WHERE number = ?", turn.number)


def withdraw(journal: Journal, turn: QueueTicket) -> None:
    """Remove the waiting run of a process from every queue, so that the process does not start the run."""
    with journal.writing():
        journal.execute("DELETE FROM turns WHERE run = ?", turn.run)


def check_queued(journal: Journal, turn: QueueTicket) -> None:
    """Raise EndedInQueue when a command removed this turn from the queue."""
    if not journal.read("SELECT 1 FROM turns WHERE number = ? AND run = ?", turn.number, turn.run):
        raise EndedInQueue(f"{turn.run}: inv down ended the run during the wait; no work was started")


def waiting(journal: Journal) -> list[QueueTicket]:
    """Return the turns of living processes, in order; only the last of several turns of a run."""
    columns = "number, run, vendor, places, devices, since, why, boot_id, pid, pid_starttime"
    return [
        QueueTicket(number, run, vendor, tuple(places.split("\n")), devices, since, why)
        for number, run, vendor, places, devices, since, why, *holder in journal.read(
            f"SELECT {columns} FROM turns WHERE number IN"
            " (SELECT max(number) FROM turns GROUP BY run, boot_id, pid, pid_starttime) ORDER BY number"
        )
        if is_alive(Identity(*holder))
    ]


def find_blocker(
    rows: Iterable[Op], turns: Iterable[QueueTicket], turn: QueueTicket, place: str
) -> "Op | QueueTicket | None":
    """Return the row or the earlier turn blocking a waiting turn at `place`, or None."""
    for op in rows:
        is_ours = op.run_of_nodes == turn.run and not (op.rank and op.detached)
        is_there = op.is_live and (op.vendor, op.place) == (turn.vendor, place)
        if is_there and not is_ours and not may_share(op.devices, turn.devices):
            return op
    return next((one for one in turns if one.number < turn.number and _both_want(one, turn, place)), None)


def find_blockers(journal: Journal, turn: QueueTicket) -> dict[str, "Op | QueueTicket | None"]:
    """Return by place the row or the earlier turn blocking a waiting turn, or None."""
    rows, turns = journal.ops(live=True), waiting(journal)
    return {place: find_blocker(rows, turns, turn, place) for place in turn.places}


def describe_blocker(found: "Op | QueueTicket", place: str) -> str:
    """Return the blocker in words: `box1: jolly-elk-1 has devices 0,1 until it ends`."""
    where = place or THIS_MACHINE
    if isinstance(found, QueueTicket):
        return f"{where}: {found.run} came before"
    return f"{where}: {found.run} has {named(found.devices)} until the end of the run"


def why_waiting(journal: Journal, turn: QueueTicket) -> str:
    """Return the reason for waiting, in words."""
    found = find_blockers(journal, turn)
    said = [describe_blocker(one, place) for place, one in found.items() if one is not None]
    if len(said) < len(found) and turn.why:  # a place is free by the journal
        said = [turn.why]
    if len(said) < len(found) and not turn.why:
        return "may start now"
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return f"waits for {'; '.join(said[:3])}{more}"


def admit(journal: Journal, rows: Iterable[Op], new: Op, own: QueueTicket | None = None) -> None:
    """Check that a new row may have the machine now, within the transaction that writes the row.

    `own`: the turn of the caller. A run with an earlier row does not queue again. Raise Leased, QueuedBehind or
    EndedInQueue.
    """
    rows = list(rows)
    if own is not None:
        check_queued(journal, own)
    if not new.place and new.vendor != HERE:
        return
    claim = own or QueueTicket(1 << 62, new.run, new.vendor, (new.place,), new.devices, 0)
    is_shared = new.vendor == HERE and own is None and not new.devices
    rivals = [op for op in rows if op.devices] if is_shared else rows
    if isinstance(found := find_blocker(rivals, (), claim, new.place), Op):
        raise Leased(found)
    if new.rank == 0 and (new.place or new.devices) and not any(op.run == new.run for op in rows):
        found = find_blocker((), waiting(journal), claim, new.place)
        if isinstance(found, QueueTicket):
            raise QueuedBehind(
                f"{describe_blocker(found, new.place)}, and is waiting; wait in line: --wait; see: inv status"
            )


def _both_want(one: QueueTicket, other: QueueTicket, place: str) -> bool:
    return one.vendor == other.vendor and place in one.places and not may_share(one.devices, other.devices)
