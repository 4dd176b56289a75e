"""Worker processes that read batches of lines in parallel and yield them in the order of a single process.

`Task.reader` assigns each piece of a file to a process, so all processes know the assignment; only the process that
reaches the end of a file needs the number of pieces. The main process is process 0 and reads too. Each other process
writes lines into a ring of slots in shared memory; a pipe carries messages about filled slots and returns free slots.
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
from data.text.lines import PreparedBatch, prepare, required_columns, wanted_columns

SLOT_BYTES = 3 << 19
RING_BYTES = 48 << 20
LEAVE_S = 10.0


@dataclass(frozen=True)
class Position:
    """End of a batch: `row` rows into piece `piece` (in parquet: the row group) of file `file`."""

    file: int = 0
    piece: int = 0
    row: int = 0
    state: dict[str, Any] | None = None
    """State of a stream for resuming at the position."""


@dataclass(frozen=True)
class Task:
    """A reading job: the spec, the files, the start position and the number of processes."""

    spec: TextSpec
    files: tuple[InputFile, ...]
    main: str
    start: Position
    workers: int

    def reader(self, file: int, piece: int) -> int:
        """Return the number of the process that reads a piece.

        Process 0 also writes the output of all processes, which takes half as much work as reading. On local files,
        process 0 therefore reads one piece in four if there are two processes, and no piece if there are more. Remote
        files are shared equally, because reading them is mostly waiting.
        """
        is_near = "://" not in self.files[file].uri
        shares = {2: (0, 1, 1, 1)}.get(self.workers, range(1, self.workers)) if is_near else range(self.workers)
        return shares[(file + piece) % len(shares)] if self.workers > 1 else 0


def read_in_order(task: Task) -> Generator[tuple[Position, PreparedBatch], None, None]:
    """Yield each batch with the position after the batch; errors of a process are raised here in order.

    The blocks of a batch are valid until the next iteration. Raises DataError if a process is killed.
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
    """Return True if workers can be forked, which starts them at once with all modules imported.

    Forking requires a single thread, because a lock held by a second thread would stay locked in the child (Arrow's
    allocators handle this), and local files, because connections cannot be shared.
    """
    if threading.active_count() > 1 or any("://" in file.uri for file in task.files):
        return False
    file = task.files[min(task.start.file, len(task.files) - 1)]
    open_pieces(file, wanted_columns(task.spec), required_columns(task.spec))  # imports the modules that workers need
    return True


def _until_end(tell: Callable[[], tuple[Position, Any]]) -> Generator[tuple[Position, PreparedBatch], None, bool]:
    """Yield the batches of a piece; return True if the file has more pieces."""
    while True:
        position, made = tell()
        if isinstance(made, bool):
            return made
        yield position, made
        del made  # free a large document before the next read


def _made(task: Task, number: int) -> Iterator[tuple[Position, PreparedBatch | bool]]:
    """Yield the results of worker `number` in order: batches, and after each piece True if the file has more pieces."""
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
                del batch  # free a large document before the next read
            yield Position(at, piece + 1), True


class Worker:
    """A worker process and its ring buffer, as seen by the reading process."""

    def __init__(self, task: Task, number: int, forked: "list[Worker] | None"):
        """Start a process: spawned if `forked` is None, otherwise forked; `forked` lists the workers forked earlier."""
        slots = max(8, RING_BYTES // (task.workers - 1) // SLOT_BYTES)
        self.memory = os.memfd_create("ring")
        os.ftruncate(self.memory, slots * SLOT_BYTES)
        self.ring = mmap.mmap(self.memory, slots * SLOT_BYTES)
        context: Any = multiprocessing.get_context("spawn" if forked is None else "fork")
        self.connection, theirs = context.Pipe()
        self.slot: int | None = None
        self.stored: list[StoredPart] = []
        self.has_more_slots = False
        self.views: Iterator[tuple[int, memoryview]] = iter(())
        inherited = [] if forked is None else [one.connection for one in (*forked, self)]
        ring = f"/proc/{os.getpid()}/fd/{self.memory}"
        self.process: BaseProcess = context.Process(
            target=_work, args=(task, number, ring, slots, theirs, inherited), daemon=True
        )
        self.process.start()
        theirs.close()

    def next(self) -> tuple[Position, Any]:
        for _ in self.views:  # skip unread parts of the previous batch
            pass
        self._release_slot()
        position, made = self._receive()
        if isinstance(made, PreparedBatch):
            self.views = self._views()
            groups = groupby(self.views, key=itemgetter(0))
            parts = (replace(part, blocks=_group(groups, number)) for number, part in enumerate(made.parts))
            made = replace(made, parts=tuple(parts))
        return position, made

    def _release_slot(self) -> None:
        if self.slot is not None:
            with contextlib.suppress(ConnectionError):  # the next receive reports a killed process
                self.connection.send_bytes(self.slot.to_bytes(2, "big"))
            self.slot = None

    def _receive(self) -> tuple[Position, Any]:
        try:
            position, made, self.slot, self.stored, self.has_more_slots = self.connection.recv()
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
        """Yield the byte blocks of a batch, each with the number of its part."""
        while True:
            view = memoryview(self.ring)
            for one in self.stored:
                yield one.part, view[one.start : one.end]
            if not self.has_more_slots:
                return
            self._release_slot()
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
    """Yield the byte blocks of part `number`; skips unread earlier parts."""
    for found, views in groups:
        if found == number:
            yield from (view for _, view in views)
            return


@dataclass(frozen=True)
class StoredPart:
    """Byte range in the ring that holds data of part number `part`."""

    part: int
    start: int
    end: int


def _work(task: Task, number: int, ring: str, slots: int, connection: Connection, others: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the main process handles Ctrl-C
    # The streaming library creates semaphores, which a normal exit removes.
    leave: Any = (lambda *_: sys.exit(143)) if any(one.stream for one in task.files) else signal.SIG_DFL
    signal.signal(signal.SIGTERM, leave)
    # Close inherited pipe ends; otherwise a pipe stays open after its owner exits.
    for other in others:
        other.close()
    with contextlib.suppress(ConnectionError, EOFError):  # the reading process exited
        try:
            with open(ring, "rb+") as file, mmap.mmap(file.fileno(), 0) as shared:
                BatchSender(shared, slots, connection).send_all(_made(task, number))
        except Exception as error:  # send the error to the reading process, which raises it
            _send_error(error, connection)
        while True:
            connection.recv_bytes()  # wait until the reading process has read everything and closes the pipe


def _send_error(error: Exception, connection: Connection) -> None:
    if isinstance(error, (ConnectionError, EOFError)):
        raise error
    from data.config import ConfigError

    known = isinstance(error, (DataError, ConfigError, OSError))
    connection.send((Position(), error if known else DataError(f"{type(error).__name__}: {error}"), None, [], False))


class BatchSender:
    """Worker side of the ring: writes batches into slots; a large batch fills several slots in sequence."""

    def __init__(self, shared: mmap.mmap, slots: int, connection: Connection):
        self.shared, self.connection = shared, connection
        self.free = list(range(slots))
        self.returned = select.poll()
        self.returned.register(connection.fileno(), select.POLLIN)

    def send_all(self, made: Iterator[tuple[Position, Any]]) -> None:
        for position, one in made:
            if isinstance(one, PreparedBatch):
                self._send(position, one)
            else:
                self.connection.send((position, one, None, [], False))

    def _send(self, position: Position, prepared: PreparedBatch) -> None:
        self._acquire_slot(
            (position, replace(prepared, parts=tuple(replace(part, blocks=()) for part in prepared.parts)))
        )
        for number, part in enumerate(prepared.parts):
            start = self.at
            for block in part.blocks:
                rest = memoryview(block)
                while self.at + len(rest) > self.end:
                    room = self.end - self.at
                    self._put(rest[:room])
                    rest = rest[room:]
                    self._send_slot(StoredPart(number, start, self.at), goes_on=True)
                    self._acquire_slot((position, None))
                    start = self.at
                self._put(rest)
            self.stored.append(StoredPart(number, start, self.at))
        self._send_slot()

    def _acquire_slot(self, said: tuple[Position, PreparedBatch | None]) -> None:
        """Take the free slot with the lowest index, and keep `said` as the message for the slot."""
        while not self.free or self.returned.poll(0):
            heapq.heappush(self.free, int.from_bytes(self.connection.recv_bytes(), "big"))
        self.slot = heapq.heappop(self.free)  # the lowest slot is most likely in the CPU cache
        self.at, self.end = self.slot * SLOT_BYTES, (self.slot + 1) * SLOT_BYTES
        self.said = said
        self.stored: list[StoredPart] = []

    def _put(self, block: memoryview) -> None:
        self.shared[self.at : self.at + len(block)] = block
        self.at += len(block)

    def _send_slot(self, *more: StoredPart, goes_on: bool = False) -> None:
        self.connection.send((*self.said, self.slot, [*self.stored, *more], goes_on))
