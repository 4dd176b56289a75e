"""Saving beside the training: a copy of everything is taken between two steps, and written while the next ones run.

In: live tensors, the run's `Checkpoints`. Out: the same checkpoints as `Checkpoints.save` makes; training pays for the
copy. Called by the loop, on the one process that writes. At most one save is under way. Where training computes on the
CPU, the writer rests twenty times as long as it computes, so that a step grows by a twentieth at most; when somebody
waits for it, it hurries. (A low priority would starve it on a busy machine, and nobody could raise it again.)
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint import Checkpoints

RESTS = 20.0  # of what it computes


class Saver:
    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._copies: dict[tuple[str, str], Tensor] = {}  # made once: new memory costs more than what is copied into it
        self._thread: threading.Thread | None = None
        self._failed: list[BaseException] = []
        self._hurry = threading.Event()

    def begin(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Copy, and write on. The save before must have been collected."""
        assert self._thread is None, "one save at a time"
        copies = {
            kind: {name: self._copy(kind, name, one) for name, one in named.items()} for kind, named in tensors.items()
        }
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies were only begun
        self._hurry.clear()
        self._thread = threading.Thread(target=self._write, args=(step, copies, facts), name=f"save {step}")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()

    def collect(self) -> bool:
        """Whether a save has ended well since the last time; raises what it failed with. Waits for nothing."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread.join()
        self._thread = None
        if self._failed:
            raise self._failed.pop()
        return True

    def _write(self, step: int, copies: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        computed_s = time.thread_time()

        def rest() -> None:
            nonlocal computed_s
            self._hurry.wait(RESTS * (time.thread_time() - computed_s))
            computed_s = time.thread_time()

        is_cpu = not torch.cuda.is_available()  # else processors have little to do
        try:
            self.checkpoints.write(step, copies, facts, rest if is_cpu else _go_on)
        except BaseException as error:
            self._failed.append(error)

    def _copy(self, kind: str, name: str, tensor: Tensor) -> Tensor:
        """On the CPU; from a GPU through memory that it writes to by itself."""
        is_cuda = tensor.device.type == "cuda"
        held = self._copies.get((kind, name))
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_cuda)
            self._copies[kind, name] = held
        return held.copy_(tensor.detach(), non_blocking=is_cuda)


def _go_on() -> None:
    pass
