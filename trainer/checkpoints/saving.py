"""Saving beside the training: a copy of everything is taken between two steps, and written while the next ones run.

In: live tensors, the run's `Checkpoints`. Out: the same checkpoints as `Checkpoints.save` makes; training pays for the
copy. At most one save is under way. Among several processes each writes the part that it has, and says how that went
between two steps, when all are there; once all parts are whole the first one finishes, or all abandon. Who does not see
the first one's disk sends it the part. Where training computes on the CPU, the writer rests thirty times as long as it
computes, so that a step grows by a thirtieth, and by its share of the copy; when somebody waits for it, it hurries. (A
low priority would starve it on a busy machine, and nobody could raise it again.)
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, Draft
from trainer.parallel.process_group import ALONE, Ranks
from trainer.tensor_file import Written

log = logging.getLogger(__name__)
RESTS = 30.0  # pause as a multiple of the CPU time spent
ALIGNED = 64  # bytes, which every dtype begins at
PULSE_S = 0.5  # interval at which processes that wait for a save report that they are alive


class Saver:
    def __init__(self, checkpoints: Checkpoints, ranks: Ranks = ALONE) -> None:
        self.checkpoints, self.ranks = checkpoints, ranks
        self._copies: dict[tuple[str, str], Tensor] = {}  # made once: new memory costs more than what is copied into it
        self._arena = Arena()
        self._hurry = threading.Event()
        self._draft: Draft | None = None  # draft of the save under way
        self._facts: Mapping[str, Any] = {}
        self._at_work: Future[Any] = Future()  # the part of this process, then, on the first one, the whole
        self._is_finishing = False

    @property
    def is_busy(self) -> bool:
        """Return whether a save is under way, which all processes say alike."""
        return self._draft is not None

    def begin(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> bool:
        """Copy the tensors that this process is to save, none on some, and write on; False when it is saved already.

        All processes call it together; the save before must have been collected. Raises OSError on all when there is
        no room, PeerLost.
        """
        assert not self.is_busy, "one save at a time"
        size = sum(one.nbytes for named in tensors.values() for one in named.values())
        sizes, has_some = zip(*self.ranks.tell_all((size, self.checkpoints.has(step))), strict=True)
        opened = self._open(step, sum(sizes))
        # to verify one that is there may take long, and only the first one does
        said = self.ranks.tell(opened) if has_some[0] else self.ranks.tell_all(opened)[0]
        if "error" in said:
            raise OSError(said["errno"], said["error"])
        if said["is_there"]:
            return False
        self._draft = Draft(self.checkpoints.folder / said["draft"], self.checkpoints.folder / said["target"])
        self._facts, self._is_finishing = facts, False
        copies = {kind: {name: self._copy(kind, name, one) for name, one in named.items()}
                  for kind, named in tensors.items()}  # fmt: skip
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies were only begun
        self._hurry.clear()
        draft, rest = self._draft, self._rester()
        if self.ranks.size > 1:
            far = self.ranks.tell_all(bool(copies) and not draft.folder.is_dir())
            self._work(f"save {step}", lambda: self._write_or_send(draft, copies, far, rest))
        else:
            self._is_finishing = True
            self._work(
                f"save {step}", lambda: self.checkpoints.finish(draft, draft.write(0, copies, rest), 1, self._facts)
            )
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until this process has done what it can for now, in a hurry."""
        self._hurry.set()
        wait([self._at_work], timeout_s)

    def collect(self) -> bool:
        """Return whether the save under way has ended well; raises OSError on all when it has failed.

        Waits for no writing. All processes call it together while a save is under way. Raises PeerLost.
        """
        if self._draft is None or self.ranks.total(self._at_work.done())[0] < self.ranks.size:
            return False
        draft, mine = self._draft, self._outcome()
        outcomes = self.ranks.tell_all(mine)
        failed = [one for one in outcomes if "error" in one]
        if failed or self._is_finishing:
            self._draft = None
            if failed:
                if self.ranks.is_first:
                    draft.abandon()
                raise OSError(failed[0]["errno"], failed[0]["error"])
            return True
        files = [Written(**file) for one in outcomes for file in one["files"]]
        world = len({file.path.rpartition("-")[2] for file in files})
        self._is_finishing, self._at_work = True, Future()
        if self.ranks.is_first:
            self._work("finish", lambda: self.checkpoints.finish(draft, files, world, self._facts))
        else:
            self._at_work.set_result(None)
        return False

    def leave(self) -> None:
        """Leave after a failure: nobody waits for the others any more. Alone, what is under way is ended first."""
        if self.ranks.size > 1:
            self._draft = None
            return
        while self.is_busy:
            self.wait()
            try:
                self.collect()
            except OSError as error:
                log.warning("a checkpoint was not saved: %s", error)

    def _open(self, step: int, num_bytes: int) -> dict[str, Any]:
        """Return the first process's message to all about the draft that it has made."""
        if not self.ranks.is_first:
            return {}
        try:
            made = self.checkpoints.begin(step, num_bytes)
        except OSError as error:
            return _told(error)
        if isinstance(made, Checkpoint):
            return {"is_there": True}
        return {"is_there": False, "draft": made.folder.name, "target": made.target.name}

    def _write_or_send(
        self, draft: Draft, copies: Mapping[str, Mapping[str, Tensor]], far: Sequence[bool], rest: Callable[[], None]
    ) -> list[Written]:
        """Return the files of this process, and on the first one those of all who are `far`.

        Raises OSError, PeerLost.
        """
        if far[self.ranks.rank]:
            self.ranks.send({f"{kind}/{name}": one for kind, named in copies.items() for name, one in named.items()})
            return []
        failed: OSError | None = None
        files: list[Written] = []
        for rank in [self.ranks.rank, *(rank for rank, is_far in enumerate(far) if is_far and self.ranks.is_first)]:
            # what is sent is received even after a failure, or the sender would wait for ever
            tensors = copies if rank == self.ranks.rank else _by_kind(self.ranks.receive(rank))
            try:
                files += draft.write(rank, tensors, rest) if failed is None else []
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return files

    def _outcome(self) -> dict[str, Any]:
        """Return the outcome of this process, for all. Raises what is no trouble with the disk."""
        try:
            done = self._at_work.result()
        except OSError as error:
            return _told(error)
        return {"files": [asdict(file) for file in done] if isinstance(done, list) else []}

    def _work(self, name: str, work: Any) -> None:
        """Work in a thread, which ends with the process: where another one has gone, nothing is waited for."""
        at_work: Future[Any] = Future()
        self._at_work = at_work

        def run() -> None:
            try:
                at_work.set_result(work())
            except BaseException as error:
                at_work.set_exception(error)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _rester(self) -> Any:
        """Return the function that the writer calls after every block."""
        if torch.cuda.is_available():  # CPUs have little else to do
            return _go_on
        computed_s: list[float] = []

        def rest() -> None:
            if computed_s:
                self._hurry.wait(RESTS * (time.thread_time() - computed_s.pop()))
            computed_s.append(time.thread_time())

        return rest

    def _copy(self, kind: str, name: str, tensor: Tensor) -> Tensor:
        """Return a copy on the CPU; from a GPU through memory that it writes to by itself."""
        is_cuda = tensor.device.type == "cuda"
        held = self._copies.get((kind, name))
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            place = self._arena.take(tensor.nbytes) if is_cuda else torch.empty(tensor.nbytes, dtype=torch.uint8)
            held = place.view(tensor.dtype).view(tensor.shape)
            self._copies[kind, name] = held
        return held.copy_(tensor.detach(), non_blocking=is_cuda)


class Arena:
    """Memory of the CPU that a GPU writes to by itself (pinned), taken a gigabyte at a time.

    PyTorch rounds every piece of it up to a power of two: tensor by tensor that is two fifths more.
    """

    def __init__(self, chunk_bytes: int = 1 << 30, is_pinned: bool = True) -> None:
        self.chunk_bytes, self.is_pinned = chunk_bytes, is_pinned
        self.chunk, self.used = torch.empty(0, dtype=torch.uint8), 0

    def take(self, num_bytes: int) -> Tensor:
        """Return so many bytes, uint8, that nobody else has."""
        if self.used + num_bytes > len(self.chunk):
            size = max(self.chunk_bytes, 1 << (num_bytes - 1).bit_length())  # what it is rounded up to is used, too
            self.chunk, self.used = torch.empty(size, dtype=torch.uint8, pin_memory=self.is_pinned), 0
        found = self.chunk[self.used : self.used + num_bytes]
        self.used += num_bytes + -num_bytes % ALIGNED
        return found


def _go_on() -> None:
    pass


def _by_kind(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, one in tensors.items():
        kind, _, rest = name.partition("/")
        found.setdefault(kind, {})[rest] = one
    return found


def _told(error: OSError) -> dict[str, Any]:
    where = f": {error.filename}" if error.filename else ""
    return {"error": f"{error.strerror or error}{where}", "errno": error.errno or errno.ENOSPC}
