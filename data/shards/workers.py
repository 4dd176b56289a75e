"""Batches of lines, made by several processes and given out in the one order that a single process would have.

`Task.reader` says which process reads a piece of a file; so everybody knows who has what, and nobody needs to know how
many pieces a file has but the one who comes to its end. This process is one of them. Lines of the others travel through
a ring of slots in memory that both sides map; a pipe says which slot holds what, and gives slots back.
"""

import contextlib
import heapq
import mmap
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import itemgetter
from typing import Any

from data.config import TextSpec
from data.errors import DataError
from data.text.batches import open_pieces
from data.text.documents import InputFile
from data.text.lines import Prepared, prepare, required_columns, wanted_columns

SLOT_BYTES = 3 << 19
RING_BYTES = 48 << 20
LEAVE_S = 10.0


@dataclass(frozen=True)
class Position:
    """The end of a batch: `row` rows into piece `piece` (of parquet: the row group) of file `file`."""

    file: int = 0
    piece: int = 0
    row: int = 0
    state: dict[str, Any] | None = None
    """State of a stream, from which it resumes there."""


@dataclass(frozen=True)
class Task:
    """The work of reading: what is read, from where, and by how many processes."""

    spec: TextSpec
    files: tuple[InputFile, ...]
    main: str
    start: Position
    workers: int

    def reader(self, file: int, piece: int) -> int:
        """Return the number of the process that reads a piece.

        Process 0 also writes what all have read, which is half as much work as reading it, but for what comes from
        afar: there most of the work is to wait.
        """
        is_near = "://" not in self.files[file].uri
        shares = {2: (0, 1, 1, 1)}.get(self.workers, range(1, self.workers)) if is_near else range(self.workers)
        return shares[(file + piece) % len(shares)] if self.workers > 1 else 0


def in_turn(task: Task) -> Generator[tuple[Position, Prepared], None, None]:
    """Yield each batch with the position behind it. What a process raises is raised here, when its turn comes.

    The blocks of a batch are good until the next one is asked for. Raises DataError when a process is killed.
    """
    forked = task.workers > 1 and _may_fork(task)
    others: list[Worker] = []
    try:
        for number in range(1, task.workers):
            others.append(Worker(task, number, others if forked else None))
        crew = [_made(task, 0).__next__, *(one.next for one in others)]
        file, piece = task.start.file, task.start.piece
        while file < len(task.files):
            goes_on = yield from _until_end(crew[task.reader(file, piece)])
            file, piece = (file, piece + 1) if goes_on else (file + 1, 0)
    finally:
        for worker in others:
            worker.end()


def _may_fork(task: Task) -> bool:
    """Return whether the processes can be copies of this one, which start at once with all that is imported here.

    What a thread held in the middle of its work would stay held in a copy for ever (those of Arrow's allocators see to
    it themselves), and connections cannot be shared.
    """
    if threading.active_count() > 1 or any("://" in file.uri for file in task.files):
        return False
    file = task.files[min(task.start.file, len(task.files) - 1)]
    open_pieces(file, wanted_columns(task.spec), required_columns(task.spec))  # imports what they need
    return True


def _until_end(tell: Callable[[], tuple[Position, Any]]) -> Generator[tuple[Position, Prepared], None, bool]:
    """Yield the batches of a piece; return whether the file goes on after it."""
    while True:
        position, made = tell()
        if isinstance(made, bool):
            return made
        yield position, made
        del made  # a large document is freed before the next one is read


def _made(task: Task, number: int) -> Iterator[tuple[Position, Prepared | bool]]:
    """Yield the results of worker `number` in order: batches, and at the end of each piece whether its file goes on."""
    spec, start = task.spec, task.start
    for at, file in enumerate(task.files[start.file :], start.file):
        pieces = open_pieces(file, wanted_columns(spec), required_columns(spec))
        for piece in count(start.piece if at == start.file else 0):
            if task.reader(at, piece) != number:
                if piece >= pieces.count:
                    break
                continue
            if piece >= pieces.count:
                yield Position(at + 1), False
                break
            here = start if (at, piece) == (start.file, start.piece) else Position()
            row = here.row if here.state else 0
            for batch in pieces.read(piece, here.state):
                row += batch.rows
                if row > here.row:
                    made = prepare(batch, spec, file.part, task.main)
                    yield Position(at, piece, row, batch.state), replace(made, file_done=piece / pieces.count)
                    del made
                del batch  # a large document is freed before the next one is read
            yield Position(at, piece + 1), True


class Worker:
    """One process and its ring, as the side that reads sees it."""

    def __init__(self, task: Task, number: int, forked: "list[Worker] | None"):
        """Start a process: anew, or as a copy of this one where the list of those copied before is given."""
        slots = max(8, RING_BYTES // (task.workers - 1) // SLOT_BYTES)
        self.memory = os.memfd_create("ring")
        os.ftruncate(self.memory, slots * SLOT_BYTES)
        self.ring = mmap.mmap(self.memory, slots * SLOT_BYTES)
        context: Any = multiprocessing.get_context("spawn" if forked is None else "fork")
        self.connection, theirs = context.Pipe()
        self.slot: int | None = None
        self.stored: list[StoredPart] = []
        self.goes_on = False
        self.views: Iterator[tuple[int, memoryview]] = iter(())
        inherited = [] if forked is None else [one.connection for one in (*forked, self)]
        ring = f"/proc/{os.getpid()}/fd/{self.memory}"
        self.process: BaseProcess = context.Process(
            target=_work, args=(task, number, ring, slots, theirs, inherited), daemon=True
        )
        self.process.start()
        theirs.close()

    def next(self) -> tuple[Position, Any]:
        for _ in self.views:  # parts of the previous batch that were not read
            pass
        self._give_back()
        position, made = self._receive()
        if isinstance(made, Prepared):
            self.views = self._views()
            groups = groupby(self.views, key=itemgetter(0))
            parts = (replace(part, blocks=_group(groups, number)) for number, part in enumerate(made.parts))
            made = replace(made, parts=tuple(parts))
        return position, made

    def _give_back(self) -> None:
        if self.slot is not None:
            with contextlib.suppress(ConnectionError):  # the next look at it reports that it was killed
                self.connection.send_bytes(self.slot.to_bytes(2, "big"))
            self.slot = None

    def _receive(self) -> tuple[Position, Any]:
        try:
            position, made, self.slot, self.stored, self.goes_on = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            why = f"left with {self.process.exitcode}"
            raise DataError(
                f"a reading process {why} (out of memory?); run the same command again to continue"
            ) from None
        if isinstance(made, Exception):
            raise made
        return position, made

    def _views(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the bytes of one batch, each time with the number of their part."""
        while True:
            view = memoryview(self.ring)
            for one in self.stored:
                yield one.part, view[one.start : one.end]
            if not self.goes_on:
                return
            self._give_back()
            self._receive()

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(LEAVE_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        os.close(self.memory)


def _group(groups: Iterator[tuple[int, Iterator[tuple[int, memoryview]]]], number: int) -> Iterator[memoryview]:
    """Yield the bytes of one part; those before it have been gone through, or nobody wanted them."""
    for found, views in groups:
        if found == number:
            yield from (view for _, view in views)
            return


@dataclass(frozen=True)
class StoredPart:
    """The place in the ring of some bytes of part number `part`."""

    part: int
    start: int
    end: int


def _work(task: Task, number: int, ring: str, slots: int, connection: Connection, others: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the main process handles Ctrl-C
    # the library of streams makes semaphores, which are to be taken away when it is told to end
    leave: Any = (lambda *_: sys.exit(143)) if any(one.stream for one in task.files) else signal.SIG_DFL
    signal.signal(signal.SIGTERM, leave)
    for other in others:  # a pipe whose end a copy holds too would never report that its owner is gone
        other.close()
    with contextlib.suppress(ConnectionError, EOFError):  # the reader is gone
        try:
            with open(ring, "rb+") as file, mmap.mmap(file.fileno(), 0) as shared:
                Sender(shared, slots, connection).send_all(_made(task, number))
        except Exception as error:  # reported to the waiting process, which raises it
            _send_error(error, connection)
        while True:
            connection.recv_bytes()  # stay until the other side has read all and hangs up


def _send_error(error: Exception, connection: Connection) -> None:
    if isinstance(error, (ConnectionError, EOFError)):
        raise error
    from data.config import ConfigError

    known = isinstance(error, (DataError, ConfigError, OSError))
    connection.send((Position(), error if known else DataError(f"{type(error).__name__}: {error}"), None, [], False))


class Sender:
    """The other side of a Worker: what is made goes into slots of the ring, a giant into one after another."""

    def __init__(self, shared: mmap.mmap, slots: int, connection: Connection):
        self.shared, self.connection = shared, connection
        self.free = list(range(slots))
        self.returned = select.poll()
        self.returned.register(connection.fileno(), select.POLLIN)

    def send_all(self, made: Iterator[tuple[Position, Any]]) -> None:
        for position, one in made:
            if isinstance(one, Prepared):
                self._send(position, one)
            else:
                self.connection.send((position, one, None, [], False))

    def _send(self, position: Position, prepared: Prepared) -> None:
        self._begin((position, replace(prepared, parts=tuple(replace(part, blocks=()) for part in prepared.parts))))
        for number, part in enumerate(prepared.parts):
            start = self.at
            for block in part.blocks:
                rest = memoryview(block)
                while self.at + len(rest) > self.end:
                    room = self.end - self.at
                    self._put(rest[:room])
                    rest = rest[room:]
                    self._hand_over(StoredPart(number, start, self.at), goes_on=True)
                    self._begin((position, None))
                    start = self.at
                self._put(rest)
            self.stored.append(StoredPart(number, start, self.at))
        self._hand_over()

    def _begin(self, said: tuple[Position, Prepared | None]) -> None:
        """Begin a new slot, which goes with this message."""
        while not self.free or self.returned.poll(0):
            heapq.heappush(self.free, int.from_bytes(self.connection.recv_bytes(), "big"))
        self.slot = heapq.heappop(self.free)  # the slot of the lowest memory, which is warm
        self.at, self.end = self.slot * SLOT_BYTES, (self.slot + 1) * SLOT_BYTES
        self.said = said
        self.stored: list[StoredPart] = []

    def _put(self, block: memoryview) -> None:
        self.shared[self.at : self.at + len(block)] = block
        self.at += len(block)

    def _hand_over(self, *more: StoredPart, goes_on: bool = False) -> None:
        self.connection.send((*self.said, self.slot, [*self.stored, *more], goes_on))
