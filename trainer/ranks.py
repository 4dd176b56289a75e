"""The processes that train one model together: plain data parallel, as torchrun starts them.

Every process computes the same batch and takes its share of the rows; gradients are added up over all, so that a step
is the same whatever their number, to the last few bits. The first process alone writes; what it has read, the others
hear from it. One process needs none of this, and nothing is set up for it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainer.errors import PeerLost, Refused

STEP_TIMEOUT_S = 60.0  # of one exchange between steps; SLIPWAY_GROUP_TIMEOUT_S sets another
WRITE_TIMEOUT_S = 3600.0  # while the others wait for what the first one reads or writes


@dataclass(frozen=True)
class Ranks:
    """Which of how many this process is."""

    rank: int = 0
    size: int = 1
    words: Any = None  # the process group for words of the first one, whose patience is longer

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, rows: np.ndarray) -> np.ndarray:
        """This process's part of the rows of a batch."""
        return np.array_split(rows, self.size)[self.rank]

    def add_up(self, parameters: Sequence[nn.Parameter], *figures: float) -> list[float]:
        """Sum the gradients over all processes, in place, and the figures, which are returned. Raises PeerLost."""
        if self.size == 1:
            return list(figures)
        grads = [
            parameter.grad if parameter.grad is not None else torch.zeros_like(parameter) for parameter in parameters
        ]
        flat = torch.cat([*(grad.flatten() for grad in grads), grads[0].new_tensor(figures)])
        with _others():
            torch.distributed.all_reduce(flat)
        *sums, total = flat.split([*(grad.numel() for grad in grads), len(figures)])
        for parameter, summed in zip(parameters, sums, strict=True):
            parameter.grad = summed.view_as(parameter)
        return [float(figure) for figure in total]

    def tell(self, words: Any = None) -> Any:
        """What the first process says, as JSON, heard by all. Raises PeerLost."""
        if self.size == 1:
            return words
        said = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        length = torch.tensor(len(said))
        with _others():
            torch.distributed.broadcast(length, 0, group=self.words)
            said = said if self.is_first else torch.empty(int(length), dtype=torch.uint8)
            torch.distributed.broadcast(said, 0, group=self.words)
        return json.loads(bytes(said.tolist()))

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place. Raises PeerLost."""
        if self.size > 1:
            with _others():
                for tensor in tensors:  # nccl knows no tensors of the CPU
                    torch.distributed.broadcast(tensor, 0, group=self.words if tensor.device.type == "cpu" else None)

    def compare(self, digests: Mapping[str, str]) -> None:
        """Raises Refused when a process has something else than the first one, and names both; PeerLost."""
        if self.size == 1:
            return
        theirs = self.tell(digests)
        odd = ", ".join(
            f"{name} ({digests[name]} instead of {theirs[name]})" for name in digests if digests[name] != theirs[name]
        )
        differs = torch.zeros(self.size)
        differs[self.rank] = bool(odd)
        with _others():
            torch.distributed.all_reduce(differs, group=self.words)
        if odd:
            raise Refused(
                f"node {node()} has not what node 0 has: {odd}; what every node makes for itself must come out equal"
            )
        if differs.any():
            raise PeerLost("another node has not what node 0 has; its log says what")


@contextmanager
def joined() -> Iterator[Ranks]:
    """Together with the others, when torchrun has started more than one. Raises PeerLost when they do not come."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if os.environ["RANK"] != "0":
        os.environ.pop("SLIPWAY_RECORDS", None)  # one process tells how it goes
    timeout_s = float(os.environ.get("SLIPWAY_GROUP_TIMEOUT_S") or STEP_TIMEOUT_S)
    with _others():
        torch.distributed.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(seconds=timeout_s)
        )
        words = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=WRITE_TIMEOUT_S))
    yield Ranks(torch.distributed.get_rank(), size, words)
    torch.distributed.destroy_process_group()  # after a failure it would wait for the others; the process ends anyway


def node() -> str:
    """Which node of the run this is."""
    return os.environ.get("SLIPWAY_NODE_RANK", "0")


@contextmanager
def _others() -> Iterator[None]:
    """What PyTorch raises when a process at the other end has gone is a RuntimeError of many names."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"another process of this run is gone or silent: {error}") from error
