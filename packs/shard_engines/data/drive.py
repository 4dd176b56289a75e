"""Shards by several machines: the ranks of `pipeline.shard` under an external engine, then one manifest.

In: what `pipeline.shard` takes, how many ranks, an engine. Out: the same summary. All machines see the checkout, its
environment, the source and the folder of the shards under the same paths. Killed anywhere, the same command resumes:
finished ranks stay, and every other continues where it stopped.
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
from data.shards.pipeline import How, Stopped, check_place
from data.single_writer import PARENT, leave_behind
from data.text.inputs import STDIN, Share, list_inputs
from packs.shard_engines.data.work import HOME, MERGE, ROOT, ShardWork, begin, locked, task_words

MOST_ROUNDS = 5
LOOK_S, MOST_LOOK_S = 0.5, 10.0


class Cluster(Protocol):
    """An external cluster. It restarts a task that was killed, as far as it can see that."""

    def at_work(self, folder: Path) -> str:
        """Return what an earlier command left running for `folder`, in words; "" for nothing."""
        ...

    def start(self, work: ShardWork, ranks: Sequence[int]) -> None:
        """Begin these ranks, and the merge after them or not; leave what is under way already as it is."""
        ...

    def status(self) -> str | None:
        """Return what is running, in words; None when nothing is any more.

        Raises DataError when that is for good.
        """
        ...

    def cancel(self) -> str:
        """End all of it and wait until it is gone; in words."""
        ...


class Interrupted(BaseException):
    def __init__(self, signal_number: int):
        self.signal_number = signal_number


def on_ray(spec: TextSpec, folder: Path, how: How, world: int, options: Mapping[str, str]) -> dict[str, Any]:
    """Write the shards by tasks of a Ray cluster. options: `ray_python`, an interpreter that has Ray."""
    from packs.shard_engines.data.ray import Ray

    return shard(spec, folder, how, world, Ray(options.get("ray_python", "")))


def on_slurm(spec: TextSpec, folder: Path, how: How, world: int, options: Mapping[str, str]) -> dict[str, Any]:
    """Write the shards by the tasks of an array job of Slurm."""
    from packs.shard_engines.data.slurm import Slurm

    return shard(spec, folder, how, world, Slurm())


def shard(spec: TextSpec, folder: Path, how: How, world: int, engine: Cluster) -> dict[str, Any]:
    """Write the shards of `spec` into `folder` by `world` ranks; the summary.

    Raises InputError for what ranks cannot do, DataError when one failed or was killed too often, Stopped after SIGINT
    or SIGTERM, when all that was begun is cancelled.
    """
    if world < 2:
        raise InputError("--engine spreads the files of a source over machines; --world N is missing: over how many")
    if spec.source in STDIN:
        raise InputError(f"source {spec.source} can be read by one machine only")
    check_place(spec, folder, bool(spec.val_ratio or spec.validation))
    inputs = list_inputs(spec)
    Share(world=world).of(spec, inputs)  # refused here rather than by every rank
    how = replace(how, workers=how.workers or 1)
    (folder / HOME).mkdir(parents=True, exist_ok=True)
    leave_behind()
    with locked(folder / HOME / "command.lock"), _stoppable():
        work = begin(spec, [inputs.about, stamps(inputs)], folder, world, asdict(how), engine.at_work(folder))
        try:
            _drive(work, engine)
        except Interrupted as stop:
            what = engine.cancel()
            raise Stopped(stop.signal_number, f"cancelled {what}, {_finished(work)}") from None
        return _result(work)


def _drive(work: ShardWork, engine: Cluster) -> None:
    """Start and follow until all tasks are finished. Raises DataError."""
    for number in range(MOST_ROUNDS):
        left = work.left()
        if number:
            emit("note", text=f"killed, and run again: rank {', '.join(map(str, left))}")
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
    raise DataError(f"{work.home}: ranks {work.left()} were killed {MOST_ROUNDS} times; see their .log there")


def _merge(work: ShardWork) -> None:
    if work.code(MERGE) is None:
        run_task(work, MERGE)
    if work.code(MERGE):
        raise DataError(work.said(MERGE).removeprefix("data merge: "))


def run_task(work: ShardWork, name: str) -> None:
    """Run a task here and now."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), PARENT: str(os.getpid())}
    subprocess.run(task_words(work, name), cwd=ROOT, env=environ)
    if work.code(name) is None:
        raise DataError(f"{name} was killed: {work.said(name)}")


def _result(work: ShardWork) -> dict[str, Any]:
    """Return the summary of the merge, and remove the folder of the tasks, which has done its work."""
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
    """Raise Interrupted at the first SIGINT or SIGTERM; a second Ctrl-C does not wait for the cancelling."""
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
