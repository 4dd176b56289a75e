"""Background saving: copy all tensors between two steps, then write the copy in a thread while training continues.

`Saver` produces the same checkpoints as `Checkpoints.save`; training pays only for the copy. At most one save runs at a
time. Each process writes its own part, or sends the part to the first process when the disk of the first process is not
mounted. All processes exchange outcomes between two steps; then the first process finishes, or all processes abandon.

On CPU training the writer sleeps 30 times as long as it computes, so a step grows by 1/30 plus the copy. A waiting
caller cancels the sleep. (A low thread priority would starve the writer on a busy machine and cannot be raised again.)
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

from data.events import add_part
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, Draft
from trainer.parallel.process_group import ALONE, Ranks
from trainer.tensor_file import WrittenFile

log = logging.getLogger(__name__)
RESTS = 30.0  # pause as a multiple of the CPU time spent
ALIGNED = 64  # bytes; alignment of every copied tensor
PULSE_S = 0.5  # seconds between liveness exchanges while processes wait for a save


class Saver:
    def __init__(self, checkpoints: Checkpoints, ranks: Ranks = ALONE) -> None:
        self.checkpoints, self.ranks = checkpoints, ranks
        self._copies: dict[tuple[str, str], Tensor] = {}  # reused: allocating costs more than copying
        self._arena = Arena()
        self._hurry = threading.Event()
        self._draft: Draft | None = None  # draft of the save under way
        self._facts: Mapping[str, Any] = {}
        self._running: Future[Any] = Future()  # writing the part of this process; later, on rank 0, finishing
        self._is_finishing = False

    @property
    def is_busy(self) -> bool:
        """Return whether a save is running; equal on all processes."""
        return self._draft is not None

    def start(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> bool:
        """Copy `tensors` and start writing in the background; return False when `step` is already saved.

        All processes call `begin` together, after collecting the previous save. tensors: the part of this process, may
        be empty. Raises OSError on all processes for a full disk, PeerLost.
        """
        assert not self.is_busy, "one save at a time"
        began = time.monotonic()
        size = sum(one.nbytes for named in tensors.values() for one in named.values())
        sizes, has_some = zip(*self.ranks.all_gather((size, self.checkpoints.has(step))), strict=True)
        opened = self._open(step, sum(sizes))
        # Only the first process verifies an existing checkpoint, which may take long: use the patient group.
        said = self.ranks.broadcast(opened) if has_some[0] else self.ranks.all_gather(opened)[0]
        if "error" in said:
            raise OSError(said["errno"], said["error"])
        if said["is_there"]:
            return False
        self._draft = Draft(self.checkpoints.folder / said["draft"], self.checkpoints.folder / said["target"])
        self._facts, self._is_finishing = facts, False
        copies = {
            kind: {name: self._copy(kind, name, one) for name, one in named.items()} for kind, named in tensors.items()
        }
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies are asynchronous
        self._hurry.clear()
        draft, rest = self._draft, self._make_throttle()
        if self.ranks.size > 1:
            far = self.ranks.all_gather(bool(copies) and not draft.folder.is_dir())
            self._run_in_thread(f"save {step}", lambda: self._write_or_send(draft, copies, far, rest))
        else:
            self._is_finishing = True
            self._run_in_thread(
                f"save {step}", lambda: self.checkpoints.finish(draft, draft.write(0, copies, rest), 1, self._facts)
            )
        add_part("saves", time.monotonic() - began)
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait, at most `timeout_s` seconds, for the background work of this process, without throttling the writer."""
        began = time.monotonic()
        self._hurry.set()
        wait([self._running], timeout_s)
        add_part("saves", time.monotonic() - began)

    def collect(self) -> bool:
        """Return whether the running save has completed, without waiting for the writers.

        All processes call `collect` together while a save is running. Raises OSError on all processes when a process
        has failed, PeerLost.
        """
        if self._draft is None or self.ranks.sum_values(self._running.done())[0] < self.ranks.size:
            return False
        draft, mine = self._draft, self._outcome()
        outcomes = self.ranks.all_gather(mine)
        failed = [one for one in outcomes if "error" in one]
        if failed or self._is_finishing:
            self._draft = None
            if failed:
                if self.ranks.is_first:
                    draft.discard()
                raise OSError(failed[0]["errno"], failed[0]["error"])
            return True
        files = [WrittenFile(**file) for one in outcomes for file in one["files"]]
        world = len({file.path.rpartition("-")[2] for file in files})
        self._is_finishing, self._running = True, Future()
        if self.ranks.is_first:
            self._run_in_thread("finish", lambda: self.checkpoints.finish(draft, files, world, self._facts))
        else:
            self._running.set_result(None)
        return False

    def stop(self) -> None:
        """Stop saving when training ends. A single process finishes the running save; several processes drop the save.

        After a failure the other processes may be gone, so a process of several must not wait for them.
        """
        if self.ranks.size > 1:
            self._draft = None
            return
        while self.is_busy:
            self.wait()
            try:
                self.collect()
            except OSError as error:
                log.warning("saving a checkpoint failed: %s", error)

    def _open(self, step: int, num_bytes: int) -> dict[str, Any]:
        """Create the draft on the first process and return the message for the others: names, or the error."""
        if not self.ranks.is_first:
            return {}
        try:
            made = self.checkpoints.open_draft(step, num_bytes)
        except OSError as error:
            return _told(error)
        if isinstance(made, Checkpoint):
            return {"is_there": True}
        return {"is_there": False, "draft": made.folder.name, "target": made.target.name}

    def _write_or_send(
        self, draft: Draft, copies: Mapping[str, Mapping[str, Tensor]], far: Sequence[bool], rest: Callable[[], None]
    ) -> list[WrittenFile]:
        """Write the copies of this process, or send them to the first process when `far[rank]` is True.

        Return the written files. The first process also receives and writes the parts of all `far` processes. Raises
        OSError, PeerLost.
        """
        if far[self.ranks.rank]:
            self.ranks.send({f"{kind}/{name}": one for kind, named in copies.items() for name, one in named.items()})
            return []
        failed: OSError | None = None
        files: list[WrittenFile] = []
        for rank in [self.ranks.rank, *(rank for rank, is_far in enumerate(far) if is_far and self.ranks.is_first)]:
            # Receive even after a failed write, else the sender waits forever.
            tensors = copies if rank == self.ranks.rank else _by_kind(self.ranks.receive(rank))
            try:
                files += draft.write(rank, tensors, rest) if failed is None else []
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return files

    def _outcome(self) -> dict[str, Any]:
        """Return the written files or the OSError of this process as plain values. Re-raise any other error."""
        try:
            done = self._running.result()
        except OSError as error:
            return _told(error)
        return {"files": [asdict(file) for file in done] if isinstance(done, list) else []}

    def _run_in_thread(self, name: str, work: Any) -> None:
        """Run `work` in a daemon thread, so that a lost peer cannot keep this process from exiting."""
        at_work: Future[Any] = Future()
        self._running = at_work

        def run() -> None:
            try:
                at_work.set_result(work())
            except BaseException as error:
                at_work.set_exception(error)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _make_throttle(self) -> Any:
        """Return the throttle called by the writer after every block."""
        if torch.cuda.is_available():  # the CPU is mostly idle
            return _go_on
        computed_s: list[float] = []

        def rest() -> None:
            if computed_s:
                self._hurry.wait(RESTS * (time.thread_time() - computed_s.pop()))
            computed_s.append(time.thread_time())

        return rest

    def _copy(self, kind: str, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor into a reused CPU buffer and return the buffer; from a GPU via pinned memory."""
        is_cuda = tensor.device.type == "cuda"
        held = self._copies.get((kind, name))
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            place = self._arena.allocate(tensor.nbytes) if is_cuda else torch.empty(tensor.nbytes, dtype=torch.uint8)
            held = place.view(tensor.dtype).view(tensor.shape)
            self._copies[kind, name] = held
        return held.copy_(tensor.detach(), non_blocking=is_cuda)


class Arena:
    """An allocator of pinned CPU memory in chunks of `chunk_bytes` (default 1 GiB).

    PyTorch rounds every pinned allocation up to a power of two; one allocation per tensor would take 2/5 more memory.
    """

    def __init__(self, chunk_bytes: int = 1 << 30, is_pinned: bool = True) -> None:
        self.chunk_bytes, self.is_pinned = chunk_bytes, is_pinned
        self.chunk, self.used = torch.empty(0, dtype=torch.uint8), 0

    def allocate(self, num_bytes: int) -> Tensor:
        """Return an unused uint8 tensor of `num_bytes` bytes."""
        if self.used + num_bytes > len(self.chunk):
            size = max(self.chunk_bytes, 1 << (num_bytes - 1).bit_length())  # use the rounding too
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
