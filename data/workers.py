"""Batches of lines, made by several processes and given out in the one order that a single process would have.

Piece g of file f is the work of process (f + g) mod N; so everybody knows who has what, and nobody needs to know how
many pieces a file has but the one who comes to its end. Lines travel through a ring of slots in a file that both
sides map; a pipe says which slot holds what, and gives slots back.
"""

import contextlib
import mmap
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from data.batches import open_pieces
from data.config import TextSpec
from data.errors import DataError
from data.inputs import InputFile
from data.lines import Part, Prepared, prepare, wanted_columns

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


def in_turn(task: Task, workers: int, scratch: Path) -> Generator[tuple[Position, Prepared], None, None]:
    """Each batch with the position behind it. What a process raises is raised here, when its turn comes.

    A `memoryview` in a batch is good until the next one is asked for. Raises DataError when a process is killed.
    """
    if workers == 1:
        for position, made in _made(task, 0, 1):
            if made is not None:
                yield position, made
        return
    crew: list[Worker] = []
    try:
        for number in range(workers):
            crew.append(Worker(task, number, workers, scratch / f"ring-{number}"))
        file, piece = task.start.file, task.start.piece
        while file < len(task.files):
            goes_on = yield from _until_end(crew[(file + piece) % workers])
            file, piece = (file, piece + 1) if goes_on else (file + 1, 0)
    finally:
        for worker in crew:
            worker.end()


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
    required = ("language",) if spec.language else ()
    for at, file in enumerate(task.files[start.file :], start.file):
        pieces = open_pieces(file, wanted_columns(spec), required)
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

    def __init__(self, task: Task, number: int, workers: int, ring: Path):
        context = multiprocessing.get_context("spawn")  # a fork would copy threads in the middle of what they do
        slots = max(8, RING_BYTES // workers // SLOT_BYTES)
        with open(ring, "wb+") as file:
            os.posix_fallocate(file.fileno(), 0, slots * SLOT_BYTES)  # a full disk is an error here, a signal later
            self.ring = mmap.mmap(file.fileno(), slots * SLOT_BYTES)
        self.connection, theirs = context.Pipe()
        self.held: int | None = None
        self.process: BaseProcess = context.Process(
            target=_work, args=(task, number, workers, str(ring), slots, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def next(self) -> tuple[Position, Any]:
        try:
            if self.held is not None:
                self.connection.send_bytes(b"")
                self.held = None
            while not self.connection.poll(POLL_S):  # so that a signal is looked at
                pass
            position, made, slot = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            why = f"left with {self.process.exitcode}"
            raise DataError(f"a reading process {why} (out of memory?); the same command goes on from here") from None
        if isinstance(made, Exception):
            raise made
        if slot is not None:
            self.held = slot
            at, parts = slot * SLOT_BYTES, []
            view = memoryview(self.ring)
            for part in made.parts:
                size = int.from_bytes(part.data, "big")
                parts.append(Part(part.name, view[at : at + size], part.lines))
                at += size
            made = replace(made, parts=tuple(parts))
        return position, made

    def end(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _work(task: Task, number: int, workers: int, ring: str, slots: int, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to hear
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
    connection.send((Position(), error if known else DataError(f"{type(error).__name__}: {error}"), None))


def _send_all(made: Iterator[tuple[Position, Any]], shared: mmap.mmap, slots: int, connection: Connection) -> None:
    used, free = 0, slots
    for position, one in made:
        slot = None
        if isinstance(one, Prepared) and sum(len(part.data) for part in one.parts) <= SLOT_BYTES:
            while not free or connection.poll():
                connection.recv_bytes()
                free += 1
            slot, used, free = used % slots, used + 1, free - 1
            one = replace(one, parts=_stored(one.parts, shared, slot * SLOT_BYTES))
        connection.send((position, one, slot))


def _stored(parts: Sequence[Part], shared: mmap.mmap, at: int) -> tuple[Part, ...]:
    """The parts with their size in place of their bytes, which go into the ring."""
    sizes = []
    for part in parts:
        shared[at : at + len(part.data)] = part.data
        at += len(part.data)
        sizes.append(Part(part.name, len(part.data).to_bytes(8, "big"), part.lines))
    return tuple(sizes)
