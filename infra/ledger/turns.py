"""The launches that wait: for a user's own machines and their devices, first come, first served; or for an offer.

In: live rows, and the turns of processes that wait. Out: what keeps a run from a machine, in words. A run has the
whole machine, or the GPUs that it names; two that name different ones share it. On this machine runs that name no GPU
share it as they please, and one that waits wants it for itself. A turn ends with the process that took it, however that
ends. Who came later gets a machine before an earlier one only where both can have it. What waits for an offer of a
vendor has a turn, too, and stands in nobody's way: each looks by itself, and whoever first finds what it asks for rents
it, also where another has waited longer for the same.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from infra.agent.host import may_share
from infra.agent.process import Identity, is_alive, myself
from infra.errors import Busy, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Leased, Op

HERE = "local"  # the provider whose pods are all on one machine, which no row names
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Turn:
    """A place in the queue for a machine."""

    number: int
    run: str
    vendor: str
    places: tuple[str, ...]
    """Machines any of which would do; ("",) = this machine. For an offer a place that nobody else asks for."""
    devices: str
    since: int
    """UTC epoch seconds."""
    why: str = ""
    """The last reason for waiting that its process was given, if it is not recorded here already."""


class InLine(Busy):
    """An earlier launch waits for that machine."""


class Withdrawn(SlipwayError):
    """Somebody has ended the run while it waited."""


def read_devices(said: str, flag: str = "--devices", counted: str = "as nvidia-smi shows them") -> str:
    """Return the numbers of GPUs in order: `1,0` is `0,1`. Raises UsageError.

    counted: how the numbers that the flag takes are counted, in words.
    """
    words = [word.strip() for word in said.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 4 for word in words):
        raise UsageError(f"{flag} {said}: expected the numbers of GPUs {counted}, such as 0,1")
    numbers = sorted(int(word) for word in words)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"{flag} {said}: a GPU is named twice")
    return ",".join(map(str, numbers))


def named(devices: str) -> str:
    """Return the part of a machine that is held, in words."""
    if not devices:
        return "it"
    return f"device{'s' if ',' in devices else ''} {devices}"


def stand_in_line(
    journal: Journal, run: str, vendor: str, places: Iterable[str], devices: str, why: str = ""
) -> Turn:  # fmt: skip
    """Join the line behind all who wait, for as long as this process lives. `why`: as `note` takes it."""
    me, now = myself(), int(time.time())
    with journal.writing():
        for number, *holder in journal.read("SELECT number, boot_id, pid, pid_starttime FROM turns"):
            if not is_alive(Identity(*holder)):
                journal.execute("DELETE FROM turns WHERE number = ?", number)
        (last,) = journal.read("SELECT coalesce(max(number), 0) FROM turns")[0]
        found = Turn(last + 1, run, vendor, tuple(places), devices, now, why)
        values = (found.number, run, vendor, "\n".join(found.places), devices, now, why, me.boot_id, me.pid, me.started)
        journal.execute(f"INSERT INTO turns VALUES ({', '.join('?' * len(values))})", *values)
    return found


def note(journal: Journal, turn: Turn, why: str) -> None:
    """Write down what keeps it waiting that no row of ours says."""
    with journal.writing():
        journal.execute("UPDATE turns SET why = ? WHERE number = ?", why, turn.number)


def leave(journal: Journal, turn: Turn) -> None:
    """Leave the line."""
    with journal.writing():
        journal.execute("DELETE FROM turns WHERE number = ?", turn.number)


def withdraw(journal: Journal, turn: Turn) -> None:
    """Take the run of another process out of every line: it begins nothing then."""
    with journal.writing():
        journal.execute("DELETE FROM turns WHERE run = ?", turn.run)


def check_in_line(journal: Journal, turn: Turn) -> None:
    """Raise Withdrawn when somebody has taken this turn out of the line."""
    if not journal.read("SELECT 1 FROM turns WHERE number = ? AND run = ?", turn.number, turn.run):
        raise Withdrawn(f"{turn.run}: somebody ended it while it waited (inv down); nothing of it was begun")


def waiting(journal: Journal) -> list[Turn]:
    """Return the turns of living processes, first come first; of a run that has several, the one it took last."""
    columns = "number, run, vendor, places, devices, since, why, boot_id, pid, pid_starttime"
    return [
        Turn(number, run, vendor, tuple(places.split("\n")), devices, since, why)
        for number, run, vendor, places, devices, since, why, *holder in journal.read(
            f"SELECT {columns} FROM turns WHERE number IN"
            " (SELECT max(number) FROM turns GROUP BY run, boot_id, pid, pid_starttime) ORDER BY number"
        )
        if is_alive(Identity(*holder))
    ]


def in_the_way(rows: Iterable[Op], turns: Iterable[Turn], turn: Turn, place: str) -> "Op | Turn | None":
    """Return the row or the earlier turn that blocks a waiting one; None when nothing does."""
    for op in rows:
        is_ours = op.run == turn.run or op.run.startswith(f"{turn.run}.") and op.rank > 0 and not op.detached
        is_there = op.is_live and (op.vendor, op.place) == (turn.vendor, place)
        if is_there and not is_ours and not may_share(op.devices, turn.devices):
            return op
    return next((one for one in turns if one.number < turn.number and _both_want(one, turn, place)), None)


def obstacles(journal: Journal, turn: Turn) -> dict[str, "Op | Turn | None"]:
    """Return by place what keeps one that waits from it."""
    rows, turns = journal.ops(live=True), waiting(journal)
    return {place: in_the_way(rows, turns, turn, place) for place in turn.places}


def in_words(found: "Op | Turn", place: str) -> str:
    """Return the blocker in words: `box1: jolly-elk-1 has devices 0,1 until it ends`."""
    where = place or THIS_MACHINE
    if isinstance(found, Turn):
        return f"{where}: {found.run} came before"
    return f"{where}: {found.run} has {named(found.devices)} until it ends"


def why_waiting(journal: Journal, turn: Turn) -> str:
    """Return the reason for which a turn waits, in words."""
    found = obstacles(journal, turn)
    said = [in_words(one, place) for place, one in found.items() if one is not None]
    if len(said) < len(found) and turn.why:  # the places on record are free
        said = [turn.why]
    if len(said) < len(found) and not turn.why:
        return "its turn has come"
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return f"waits for {'; '.join(said[:3])}{more}"


def admit(journal: Journal, rows: Iterable[Op], new: Op, own: Turn | None = None) -> None:
    """Check that a new row may have its machine now; within the transaction that writes the row.

    `own`: the turn of who asks. A run that has been there before goes on where it was. Raises Leased, InLine,
    Withdrawn.
    """
    rows = list(rows)
    if own is not None:
        check_in_line(journal, own)
    if not new.place and new.vendor != HERE:
        return
    claim = own or Turn(1 << 62, new.run, new.vendor, (new.place,), new.devices, 0)
    is_shared = new.vendor == HERE and own is None and not new.devices
    rivals = [op for op in rows if op.devices] if is_shared else rows
    if isinstance(found := in_the_way(rivals, (), claim, new.place), Op):
        raise Leased(found)
    if new.rank == 0 and (new.place or new.devices) and not any(op.run == new.run for op in rows):
        found = in_the_way((), waiting(journal), claim, new.place)
        if isinstance(found, Turn):
            raise InLine(f"{in_words(found, new.place)}, and waits for it; stand in line: --wait; see: inv status")


def _both_want(one: Turn, other: Turn, place: str) -> bool:
    return one.vendor == other.vendor and place in one.places and not may_share(one.devices, other.devices)
