"""Batches of lines, made by several processes and given out in the one order that a single process would have.

Piece g of file f is the work of process (f + g) mod N; so everybody knows who has what, and nobody needs to know how
many pieces a file has but the one who comes to its end. Lines travel through a ring of slots in memory that both
sides map; a pipe says which slot holds what, and gives slots back.
"""

import contextlib
import heapq
import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from data.batches import open_pieces
from data.config import TextSpec
from data.errors import DataError
from data.inputs import InputFile
from data.lines import Part, Prepared, prepare, required_columns, wanted_columns

SLOT_BYTES = 3 << 19
RING_BYTES = 48 << 20
POLL_S = 0.5


@dataclass(frozen=True)
class Position:
    """Where a batch ended: `row` rows into piece `piece` (of parquet: the row group) of file `file`."""

    file: int = 0
    piece: int = 0
    row: int = 0


@dataclass(frozen=True)
class Task:
    """What is to be read, from where, and who reads it."""

    spec: TextSpec
    files: tuple[InputFile, ...]
    main: str
    start: Position


def in_turn(task: Task, workers: int) -> Generator[tuple[Position, Prepared], None, None]:
    """Each batch with the position behind it. What a process raises is raised here, when its turn comes.

    The blocks of a batch are good until the next one is asked for. Raises DataError when a process is killed.
    """
    if workers == 1:
        for position, made in _made(task, 0, 1):
            if made is not None:
                yield position, made
        return
    crew: list[Worker] = []
    forked = _may_fork(task)
    try:
        for number in range(workers):
            crew.append(Worker(task, number, workers, crew if forked else None))
        file, piece = task.start.file, task.start.piece
        while file < len(task.files):
            goes_on = yield from _until_end(crew[(file + piece) % workers])
            file, piece = (file, piece + 1) if goes_on else (file + 1, 0)
    finally:
        for worker in crew:
            worker.end()


def _may_fork(task: Task) -> bool:
    """Whether the processes can be copies of this one, which start at once with all that is imported here.

    What a thread held in the middle of its work would stay held in a copy for ever (those of Arrow's allocators see to
    it themselves), and connections cannot be shared.
    """
    if threading.active_count() > 1 or any("://" in file.uri for file in task.files):
        return False
    file = task.files[min(task.start.file, len(task.files) - 1)]
    open_pieces(file, wanted_columns(task.spec), required_columns(task.spec))  # imports what they need
    return True


def _until_end(worker: "Worker") -> Generator[tuple[Position, Prepared], None, bool]:
    """Passes on the batches of a piece; then whether the file goes on after it."""
    while True:
        position, made = worker.next()
        if isinstance(made, bool):
            return made
        yield position, made


def _made(task: Task, number: int, workers: int) -> Iterator[tuple[Position, Any]]:
    """What worker `number` has to tell, in order: batches, and `None` (alone) or True/False at the ends of pieces."""
    spec, start = task.spec, task.start
    for at, file in enumerate(task.files[start.file :], start.file):
        pieces = open_pieces(file, wanted_columns(spec), required_columns(spec))
        for piece in count(start.piece if at == start.file else 0):
            if (at + piece) % workers != number:
                if piece >= pieces.count:
                    break
                continue
            if piece >= pieces.count:
                yield Position(at + 1), False if workers > 1 else None
                break
            row = 0
            skip = start.row if (at, piece) == (start.file, start.piece) else 0
            for batch in pieces.read(piece):
                row += batch.rows
                if row > skip:
                    yield Position(at, piece, row), prepare(batch, spec, file.part, task.main)
            yield Position(at, piece + 1), True if workers > 1 else None


class Worker:
    """One process and its ring, as the side that reads sees it."""

    def __init__(self, task: Task, number: int, workers: int, forked: "list[Worker] | None"):
        """A process that is started anew, or a copy of this one where the list of those copied before is given."""
        slots = max(8, RING_BYTES // workers // SLOT_BYTES)
        self.memory = os.memfd_create("ring")
        os.ftruncate(self.memory, slots * SLOT_BYTES)
        self.ring = mmap.mmap(self.memory, slots * SLOT_BYTES)
        context: Any = multiprocessing.get_context("spawn" if forked is None else "fork")
        self.connection, theirs = context.Pipe()
        self.held: int | None = None
        inherited = [] if forked is None else [one.connection for one in (*forked, self)]
        ring = f"/proc/{os.getpid()}/fd/{self.memory}"
        self.process: BaseProcess = context.Process(
            target=_work, args=(task, number, workers, ring, slots, theirs, inherited), daemon=True
        )
        self.process.start()
        theirs.close()

    def next(self) -> tuple[Position, Any]:
        try:
            if self.held is not None:
                self.connection.send_bytes(self.held.to_bytes(2, "big"))
                self.held = None
            while not self.connection.poll(POLL_S):  # so that a signal is looked at
                pass
            position, made, slot, stored = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            why = f"left with {self.process.exitcode}"
            raise DataError(f"a reading process {why} (out of memory?); the same command goes on from here") from None
        if isinstance(made, Exception):
            raise made
        if isinstance(made, Prepared):
            self.held = slot
            view = memoryview(self.ring)
            blocks = [(view[one.start : one.end], *((one.rest,) if one.rest else ())) for one in stored]
            parts = (Part(one.name, some, one.lines) for one, some in zip(stored, blocks, strict=True))
            made = replace(made, parts=tuple(parts))
        return position, made

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()
        os.close(self.memory)


@dataclass(frozen=True)
class Stored:
    """A part whose bytes lie in the ring; `rest` is what the slot had no room for."""

    name: str
    start: int
    end: int
    rest: bytes
    lines: int


def _work(task: Task, number: int, workers: int, ring: str, slots: int, connection: Connection, others: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to hear
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # the end of a pipe that a copy holds, too, would never tell that its owner is gone
        other.close()
    with contextlib.suppress(ConnectionError, EOFError):  # nobody reads any more
        try:
            with open(ring, "rb+") as file, mmap.mmap(file.fileno(), 0) as shared:
                _send_all(_made(task, number, workers), shared, slots, connection)
        except Exception as error:  # told to who waits for us, who raises it
            _send_error(error, connection)
        while True:
            connection.recv_bytes()  # stay until the other side has read all and hangs up


def _send_error(error: Exception, connection: Connection) -> None:
    if isinstance(error, (ConnectionError, EOFError)):
        raise error
    from data.config import ConfigError

    known = isinstance(error, (DataError, ConfigError, OSError))
    connection.send((Position(), error if known else DataError(f"{type(error).__name__}: {error}"), None, []))


def _send_all(made: Iterator[tuple[Position, Any]], shared: mmap.mmap, slots: int, connection: Connection) -> None:
    free = list(range(slots))
    for position, one in made:
        stored: list[Stored] = []
        slot = None
        if isinstance(one, Prepared):
            while not free or connection.poll():
                heapq.heappush(free, int.from_bytes(connection.recv_bytes(), "big"))
            slot = heapq.heappop(free)  # of the lowest memory, which is warm
            at = slot * SLOT_BYTES
            for part in one.parts:
                stored.append(_store(part, shared, at, (slot + 1) * SLOT_BYTES))
                at = stored[-1].end
            one = replace(one, parts=())
        connection.send((position, one, slot, stored))


def _store(part: Part, shared: mmap.mmap, start: int, end: int) -> Stored:
    """Put the bytes of `part` into `shared` from `start` on, as far as `end`."""
    at = start
    rest: list[bytes | memoryview] = []
    for block in part.blocks:
        if rest or at + len(block) > end:
            rest.append(block)
        else:
            shared[at : at + len(block)] = block
            at += len(block)
    return Stored(part.name, start, at, b"".join(rest), part.lines)
