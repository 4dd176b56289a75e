"""Process pool: spawned worker processes that run tasks from a queue.

Tasks and a worker factory go in; reports of running tasks come back in the main process.
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


def run_tasks(
    tasks: Sequence[Task],
    begin: Callable[[], Callable[[Task], Iterable[Any]]],
    workers: int,
    hear: Callable[[Task, Any], None],
) -> None:
    """Run all tasks, started in order, in several processes.

    Each process calls `begin` once, to create a function that runs a task; every value yielded by the function is
    passed to `hear` in the main process. Raises the DataError or OSError of a process, and DataError for a killed
    process.
    """
    waiting = list(reversed(tasks))
    # Spawn instead of fork: locks held by threads would stay locked in a forked child.
    context = multiprocessing.get_context("spawn")
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
            for one in wait(list(at_work), timeout=POLL_S):  # the timeout lets Python handle signals
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
    with suppress(ConnectionError):  # the process was killed; the next receive reports the error
        connection.send(task)
    return task


def _listen(connection: Any, task: Any, process: Any) -> Any:
    """Return the next report of a process, or None when its task is done."""
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
    with suppress(ConnectionError, EOFError):  # the main process exited
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
