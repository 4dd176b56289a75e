"""Driver for sharding on several machines: runs the ranks of `pipeline.shard` on an external engine, then merges them.

    spec, world -> task files -> Cluster.start -> ranks -> merge -> manifest

All machines must see the checkout, the Python environment, the source and the output folder under the same paths. After
a kill, the same command resumes: finished ranks stay finished, and other ranks continue from their last position.
"""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from data.config import TextSpec
from data.errors import DataError, InputError
from data.events import emit
from data.merge import merge
from data.shards.pipeline import RunOptions, StoppedBySignal, check_place
from data.shards.read_options import stamps
from data.text.inputs import STDIN, Share, list_inputs
from packs.shard_engines.data.work import HOME, ShardWork, begin, locked

MOST_ROUNDS = 5
LOOK_S, MOST_LOOK_S = 0.5, 10.0


class Cluster(Protocol):
    """Interface of an external engine. The engine restarts killed tasks as far as it detects them."""

    def start(self, work: ShardWork, ranks: Sequence[int]) -> None:
        """Start these ranks."""
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
    Share(world=world).select_inputs(spec, inputs)  # Fail here rather than in every rank.
    how = replace(how, workers=how.workers or 1)
    (folder / HOME).mkdir(parents=True, exist_ok=True)
    with locked(folder / HOME / "command.lock"), _stoppable():
        work = begin(spec, [inputs.about, stamps(inputs)], folder, world, asdict(how))
        try:
            _drive(work, engine)
            made = merge(work.folder)
        except Interrupted as stop:
            what = engine.cancel()
            raise StoppedBySignal(stop.signal_number, f"cancelled {what}, {_finished(work)}") from None
        _remove(work)
        return {key: made[key] for key in ("documents", "shards")}


def _drive(work: ShardWork, engine: Cluster) -> None:
    """Start unfinished ranks and follow them until all tasks are finished, for at most `MOST_ROUNDS` rounds.

    Raise DataError for a failed rank, or InputError if the rank rejected its input.
    """
    for number in range(MOST_ROUNDS):
        left = work.unfinished_ranks()
        if number:
            emit("note", text=f"killed and started again: rank {', '.join(map(str, left))}")
        engine.start(work, left)
        wait_s = LOOK_S
        while (words := engine.status()) is not None:
            emit("progress", done=work.documents(), total=None, unit="documents", text=_so_far(work, words))
            time.sleep(wait_s)
            wait_s = min(MOST_LOOK_S, wait_s * 1.2)
        if ranks := work.failed_names():
            more = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
            kind = InputError if work.code(ranks[0]) == InputError.exit_code else DataError
            raise kind(f"{ranks[0]}{more}: {work.last_log_line(ranks[0]).removeprefix('data text: ')}")
        if not work.unfinished_ranks():
            return
    raise DataError(
        f"{work.home}: ranks {work.unfinished_ranks()} were killed {MOST_ROUNDS} times; "
        "see the .log files in this folder"
    )


def _remove(work: ShardWork) -> None:
    for path in work.home.iterdir():
        path.unlink()
    work.home.rmdir()


def _so_far(work: ShardWork, words: str) -> str:
    return f"{work.documents():,} documents, {_finished(work)}; {words}"


def _finished(work: ShardWork) -> str:
    return f"{work.world - len(work.unfinished_ranks())} of {work.world} ranks finished"


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
