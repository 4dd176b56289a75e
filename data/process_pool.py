"""A process pool: several processes that do one task after another, spawned rather than forked.

In: tasks, what makes a worker in a process of its own. Out: what each reports while it works.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from data.errors import DataError

Task = TypeVar("Task")
POLL_S = 1.0


def share_out(
    tasks: Sequence[Task],
    begin: Callable[[], Callable[[Task], Iterable[Any]]],
    workers: int,
    hear: Callable[[Task, Any], None],
) -> None:
    """Run all tasks, begun in their order, in several processes.

    `begin` is called once in each process and returns what does a task; whatever that yields is passed to `hear` here.
    Raises DataError or OSError as a process did; DataError for one that was killed.
    """
    waiting = list(reversed(tasks))
    context = multiprocessing.get_context("spawn")  # in a forked copy, locks that threads held would stay locked
    crew: dict[Any, Any] = {}
    at_work: dict[Any, Task] = {}
    try:
        for _ in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(begin, theirs), daemon=True)
            process.start()
            theirs.close()
            crew[ours] = process
            at_work[ours] = _give(ours, waiting)
        while at_work:
            for one in wait(list(at_work), timeout=POLL_S):  # so that a signal is looked at
                said = _listen(one, at_work[one], crew[one])
                if said is not None:
                    hear(at_work[one], said)
                elif waiting:
                    at_work[one] = _give(one, waiting)
                else:
                    del at_work[one]
    finally:
        for connection, process in crew.items():
            connection.close()
            process.terminate()
            process.join()


def _give(connection: Any, waiting: list[Task]) -> Task:
    task = waiting.pop()
    with suppress(ConnectionError):  # it was killed; the next look at it reports that
        connection.send(task)
    return task


def _listen(connection: Any, task: Any, process: Any) -> Any:
    """Return the next report of a process; None: its task is done."""
    try:
        said = connection.recv()
    except (EOFError, ConnectionError):
        process.join(5)
        why = f"a process left with {process.exitcode} (out of memory?)"
        raise DataError(f"{task}: {why}; run the same command again to continue") from None
    if isinstance(said, Exception):
        raise said
    return said


def _work(begin: Callable[[], Callable[[Any], Iterable[Any]]], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the main process handles Ctrl-C
    with suppress(ConnectionError, EOFError):  # the main process is gone
        try:
            do = begin()
            while True:
                for said in do(connection.recv()):
                    connection.send(said)
                connection.send(None)
        except (DataError, OSError) as error:
            if isinstance(error, ConnectionError):
                raise
            connection.send(error)
