"""The processes that train one model together, as torchrun starts them.

Every process computes the same batch and takes its share of the rows; gradients are added up over all, so that a step
is the same whatever their number, to the last few bits. What the first process has read, the others hear from it. One
process needs none of this, and nothing is set up for it. Where none holds the model whole, `trainer.parallel.fsdp`
comes on top.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.errors import PeerLost, Refused

# Timeouts of one exchange. Until the first step is done, others may compile, read a model or set up NCCL; afterwards a
# silent process is gone. SLIPWAY_GROUP_TIMEOUT_S replaces both.
FIRST_TIMEOUT_S, STEP_TIMEOUT_S = 600.0, 100.0
WRITE_TIMEOUT_S = 3600.0  # while the others wait for what the first one reads or writes


# Messages of backends when a process at the other end has gone or is silent, inside of a pass through the model.
GONE = re.compile(r"gloo|nccl|connection (closed|reset)|timed out waiting", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    size: int = 1
    per_node: int = 1  # number of processes on this node, and on each other one
    words: Any = None  # the group for words of those who may have to read, write or answer for long
    quick: Any = None  # the group for words of all, who are there at the same time

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, rows: np.ndarray, fill: int) -> np.ndarray:
        """Return the part of this process of the rows of a batch.

        With rows of `fill` it is as long as that of any other, so that all pass the model equally often.
        """
        mine = np.array_split(rows, self.size)[self.rank]
        missing = -(-len(rows) // self.size) - len(mine)
        return np.concatenate([mine, np.full((missing, *rows.shape[1:]), fill, rows.dtype)]) if missing else mine

    def add_up(self, figures: Tensor) -> Tensor:
        """Return their sums over all processes, float64, where they lie: nobody waits for a GPU. Raises PeerLost."""
        sums = figures.detach().double()
        if self.size > 1:
            with _others():
                torch.distributed.all_reduce(sums)
        return sums

    def total(self, *figures: float) -> list[float]:
        """Return their sums over all processes. Raises PeerLost."""
        if self.size == 1:
            return list(figures)
        sums = torch.tensor(figures, dtype=torch.float64)
        with _others():
            torch.distributed.all_reduce(sums, group=self.quick)
        return sums.tolist()

    def tell(self, words: Any = None) -> Any:
        """Return the first process's words, as JSON, heard by all. Raises PeerLost."""
        if self.size == 1:
            return words
        said = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        length = torch.tensor(len(said))
        with _others():
            torch.distributed.broadcast(length, 0, group=self.words)
            said = said if self.is_first else torch.empty(int(length), dtype=torch.uint8)
            torch.distributed.broadcast(said, 0, group=self.words)
        return json.loads(bytes(said.tolist()))

    def tell_all(self, words: Any, is_patient: bool = False) -> list[Any]:
        """Return the words of each process, as JSON, heard by all. Raises PeerLost.

        is_patient: one of them may have much to do before it speaks.
        """
        if self.size == 1:
            return [words]
        group = self.words if is_patient else self.quick
        said = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        lengths = [torch.tensor(0) for _ in range(self.size)]
        with _others():
            torch.distributed.all_gather(lengths, torch.tensor(len(said)), group=group)
            longest = max(int(length) for length in lengths)
            padded = torch.cat([said, said.new_zeros(longest - len(said))])
            heard = [torch.empty_like(padded) for _ in range(self.size)]
            torch.distributed.all_gather(heard, padded, group=group)
        return [json.loads(bytes(one[: int(length)].tolist())) for one, length in zip(heard, lengths, strict=True)]

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place. Raises PeerLost."""
        if self.size > 1:
            with _others():
                for tensor in tensors:  # nccl knows no tensors of the CPU
                    torch.distributed.broadcast(tensor, 0, group=self.words if tensor.device.type == "cpu" else None)

    def tell_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the CPU's tensors that the first process has, heard by all, whatever they are. Raises PeerLost."""
        if self.size == 1:
            return dict(tensors)
        about = {name: (str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()}
        mine = dict(tensors) if self.is_first else {}
        for name, (dtype, shape) in self.tell(about).items():
            one = mine.setdefault(name, torch.empty(shape, dtype=getattr(torch, dtype)))
            self.spread([_as_bytes(one)])
        return mine

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send tensors of the CPU to the first process, which calls `receive`; beside the training. Raises PeerLost."""
        about = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
        said = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        with _others():
            for one in (torch.tensor(len(said)), said, *tensors.values()):
                torch.distributed.send(_as_bytes(one), 0, group=self.words)

    def receive(self, rank: int) -> dict[str, Tensor]:
        """Return the tensors that process sends. Raises PeerLost."""
        with _others():

            def fill(one: Tensor) -> Tensor:
                torch.distributed.recv(_as_bytes(one), rank, group=self.words)
                return one

            said = fill(torch.empty(int(fill(torch.tensor(0))), dtype=torch.uint8))
            about = json.loads(bytes(said.tolist()))
            return {name: fill(torch.empty(shape, dtype=getattr(torch, dtype))) for name, dtype, shape in about}

    def hurry(self, *groups: Any) -> None:
        """Give up sooner from now on: a step is done, and nothing slow lies ahead. groups: more of them than these.

        PyTorch has no public name for it; torchtitan calls the same function.
        """
        if self.size > 1:
            patience = timedelta(seconds=timeout_s(STEP_TIMEOUT_S))
            for group in (None, self.quick, *groups):
                torch.distributed.distributed_c10d._set_pg_timeout(patience, group)

    def compare(self, digests: Mapping[str, str]) -> None:
        """Raise Refused when a process has something else than the first one, naming both. Raises PeerLost."""
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
    """Join the others, when torchrun has started more than one. Raises PeerLost when they do not come."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if os.environ["RANK"] != "0":
        os.environ.pop("SLIPWAY_RECORDS", None)  # one process tells how it goes
    with _others():
        patience = timedelta(seconds=timeout_s(FIRST_TIMEOUT_S))
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=patience)
        words = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=WRITE_TIMEOUT_S))
        quick = torch.distributed.new_group(backend="gloo", timeout=patience)
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    yield Ranks(torch.distributed.get_rank(), size, per_node, words, quick)
    torch.distributed.destroy_process_group()  # after a failure it would wait for the others; the process ends anyway


ALONE = Ranks()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def timeout_s(usual: float) -> float:
    return float(os.environ.get("SLIPWAY_GROUP_TIMEOUT_S") or usual)


def node() -> str:
    """Return the rank of this node in the run."""
    return os.environ.get("SLIPWAY_NODE_RANK", "0")


@contextmanager
def _others(only: re.Pattern[str] | None = None) -> Iterator[None]:
    """Raise PeerLost for what PyTorch raises when a process at the other end has gone: a RuntimeError of many names.

    only: what its words must have in them, where other things may fail too.
    """
    try:
        yield
    except RuntimeError as error:
        if only and not only.search(str(error)) and not isinstance(error, torch.distributed.DistError):
            raise
        raise PeerLost(f"another process of this run is gone or silent: {error}") from error


def passing() -> AbstractContextManager[None]:
    """Turn what comes out of a pass through a model whose parts other processes have into PeerLost."""
    return _others(GONE)
