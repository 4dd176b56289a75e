"""Driver for sharding on several machines: runs the ranks of `pipeline.shard` on an external engine, then merges them.

    spec, world -> task files -> Cluster.start -> ranks -> merge -> manifest

All machines must see the checkout, the Python environment, the source and the output folder under the same paths. After
a kill, the same command resumes: finished ranks stay finished, and other ranks continue from their last position.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from data.config import TextSpec
from data.errors import DataError, InputError
from data.events import emit
from data.shards.asked import stamps
from data.shards.pipeline import RunOptions, StoppedBySignal, check_place
from data.single_writer import PARENT, leave_behind
from data.text.inputs import STDIN, Share, list_inputs
from packs.shard_engines.data.work import HOME, MERGE, ROOT, ShardWork, begin, locked, task_words

MOST_ROUNDS = 5
LOOK_S, MOST_LOOK_S = 0.5, 10.0


class Cluster(Protocol):
    """Interface of an external engine. The engine restarts killed tasks as far as it detects them."""

    def at_work(self, folder: Path) -> str:
        """Return a description of the tasks of an earlier command for `folder`, or ""."""
        ...

    def start(self, work: ShardWork, ranks: Sequence[int]) -> None:
        """Start these ranks and optionally the merge after the ranks. Keep tasks that already run."""
        ...

    def status(self) -> str | None:
        """Return a description of running tasks, or None after all tasks have ended.

        Raise DataError for a permanent failure.
        """
        ...

    def cancel(self) -> str:
        """Cancel all tasks and wait for their end; return a description of the cancelled tasks."""
        ...


class Interrupted(BaseException):
    def __init__(self, signal_number: int):
        self.signal_number = signal_number


def on_ray(spec: TextSpec, folder: Path, how: RunOptions, world: int, options: Mapping[str, str]) -> dict[str, Any]:
    """Write the shards with tasks on a Ray cluster. `options["ray_python"]` is an interpreter with Ray."""
    from packs.shard_engines.data.ray import Ray

    return shard(spec, folder, how, world, Ray(options.get("ray_python", "")))


def on_slurm(spec: TextSpec, folder: Path, how: RunOptions, world: int, options: Mapping[str, str]) -> dict[str, Any]:
    """Write the shards with an array job on Slurm."""
    from packs.shard_engines.data.slurm import Slurm

    return shard(spec, folder, how, world, Slurm())


def shard(spec: TextSpec, folder: Path, how: RunOptions, world: int, engine: Cluster) -> dict[str, Any]:
    """Write the shards of `spec` into `folder` with `world` ranks and return the summary.

    Raises:
        InputError: If ranks cannot shard this source.
        DataError: If a rank fails or is killed too often.
        Stopped: After SIGINT or SIGTERM, once the engine has cancelled all tasks.
    """
    if world < 2:
        raise InputError(
            "--engine spreads the files of a source over machines, and the number of machines is missing; add --world N"
        )
    if spec.source in STDIN:
        raise InputError(f"source {spec.source} can be read by one machine only; leave --engine out")
    check_place(spec, folder, bool(spec.val_ratio or spec.validation))
    inputs = list_inputs(spec)
    Share(world=world).of(spec, inputs)  # Fail here rather than in every rank.
    how = replace(how, workers=how.workers or 1)
    (folder / HOME).mkdir(parents=True, exist_ok=True)
    leave_behind()
    with locked(folder / HOME / "command.lock"), _stoppable():
        work = begin(spec, [inputs.about, stamps(inputs)], folder, world, asdict(how), engine.at_work(folder))
        try:
            _drive(work, engine)
        except Interrupted as stop:
            what = engine.cancel()
            raise StoppedBySignal(stop.signal_number, f"cancelled {what}, {_finished(work)}") from None
        return _result(work)


def _drive(work: ShardWork, engine: Cluster) -> None:
    """Start unfinished ranks and follow them until all tasks are finished, for at most `MOST_ROUNDS` rounds.

    Raise DataError for a failed rank, or InputError if the rank rejected its input.
    """
    for number in range(MOST_ROUNDS):
        left = work.left()
        if number:
            emit("note", text=f"killed and started again: rank {', '.join(map(str, left))}")
        work.forget([MERGE])
        engine.start(work, left)
        wait_s = LOOK_S
        while (words := engine.status()) is not None:
            emit("progress", done=work.documents(), total=None, unit="documents", text=_so_far(work, words))
            time.sleep(wait_s)
            wait_s = min(MOST_LOOK_S, wait_s * 1.2)
        ranks = [name for name in work.failed() if name != MERGE]
        if ranks:
            more = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
            kind = InputError if work.code(ranks[0]) == InputError.exit_code else DataError
            raise kind(f"{ranks[0]}{more}: {work.said(ranks[0]).removeprefix('data text: ')}")
        if not work.left():
            return _merge(work)
    raise DataError(
        f"{work.home}: ranks {work.left()} were killed {MOST_ROUNDS} times; see the .log files in this folder"
    )


def _merge(work: ShardWork) -> None:
    if work.code(MERGE) is None:
        run_task(work, MERGE)
    if work.code(MERGE):
        raise DataError(work.said(MERGE).removeprefix("data merge: "))


def run_task(work: ShardWork, name: str) -> None:
    """Run a task in a child process on this machine. Raise DataError if the process is killed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), PARENT: str(os.getpid())}
    subprocess.run(task_words(work, name), cwd=ROOT, env=environ)
    if work.code(name) is None:
        raise DataError(f"{name} was killed: {work.said(name)}")


def _result(work: ShardWork) -> dict[str, Any]:
    """Return the summary of the merge and remove the finished task folder."""
    last = work.file(MERGE, "records").read_text(encoding="utf-8").splitlines()[-1]
    result = json.loads(last)
    for path in work.home.iterdir():
        path.unlink()
    work.home.rmdir()
    return {key: result[key] for key in ("documents", "shards")}


def _so_far(work: ShardWork, words: str) -> str:
    return f"{work.documents():,} documents, {_finished(work)}; {words}"


def _finished(work: ShardWork) -> str:
    return f"{work.world - len(work.left())} of {work.world} ranks finished"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise Interrupted on the first SIGINT or SIGTERM, and KeyboardInterrupt on a Ctrl-C during cancellation."""
    heard = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise Interrupted(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
