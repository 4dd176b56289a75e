"""Communication between the processes training one model, as started by torchrun.

Every process prepares the same batch and computes a share of the rows. Gradients are summed over all processes, so the
result of a step depends on the number of processes only in the last bits. The first process reads files and broadcasts
the contents. A single process sets up no process group. `trainer.parallel.fsdp` adds model sharding.
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

# Timeouts of a collective operation in seconds. Before the end of the first step, processes may compile, read a model
# or set up NCCL; afterwards a silent process is considered lost. SLIPWAY_GROUP_TIMEOUT_S overrides both.
FIRST_TIMEOUT_S, STEP_TIMEOUT_S = 600.0, 100.0
WRITE_TIMEOUT_S = 3600.0  # seconds, while the first process reads or writes files


# Error messages of the backends when a peer is lost or silent during a pass through the model.
GONE = re.compile(r"gloo|nccl|connection (closed|reset)|timed out waiting", re.IGNORECASE)


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the process groups. The default is a single process."""

    rank: int = 0
    size: int = 1
    per_node: int = 1  # number of processes on each node
    words: Any = None  # gloo group with the long timeout, for waits during file access
    quick: Any = None  # gloo group with the short timeout, for processes in step

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def shard_rows(self, rows: np.ndarray, fill: int) -> np.ndarray:
        """Return this process's share of the rows of a batch, padded with `fill` to equal length on all processes.

        Equal lengths give every process the same number of passes.
        """
        mine = np.array_split(rows, self.size)[self.rank]
        missing = -(-len(rows) // self.size) - len(mine)
        return np.concatenate([mine, np.full((missing, *rows.shape[1:]), fill, rows.dtype)]) if missing else mine

    def all_reduce(self, figures: Tensor) -> Tensor:
        """Return the sums over all processes in float64, on the same device without synchronizing. Raises PeerLost."""
        sums = figures.detach().double()
        if self.size > 1:
            with _others():
                torch.distributed.all_reduce(sums)
        return sums

    def sum_values(self, *figures: float) -> list[float]:
        """Return the sum of each figure over all processes. Raises PeerLost."""
        if self.size == 1:
            return list(figures)
        sums = torch.tensor(figures, dtype=torch.float64)
        with _others():
            torch.distributed.all_reduce(sums, group=self.quick)
        return sums.tolist()

    def broadcast(self, words: Any = None) -> Any:
        """Broadcast a JSON value from the first process to all; return the value. Raises PeerLost."""
        if self.size == 1:
            return words
        said = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        length = torch.tensor(len(said))
        with _others():
            torch.distributed.broadcast(length, 0, group=self.words)
            said = said if self.is_first else torch.empty(int(length), dtype=torch.uint8)
            torch.distributed.broadcast(said, 0, group=self.words)
        return json.loads(bytes(said.tolist()))

    def all_gather(self, words: Any, is_patient: bool = False) -> list[Any]:
        """Gather a JSON value from each process on all processes, in rank order. Raises PeerLost.

        is_patient: use the group with the long timeout, when a process may arrive late.
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

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast tensors from the first process to all, in place. Raises PeerLost."""
        if self.size > 1:
            with _others():
                for tensor in tensors:  # NCCL does not support CPU tensors
                    torch.distributed.broadcast(tensor, 0, group=self.words if tensor.device.type == "cpu" else None)

    def broadcast_named_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Broadcast CPU tensors by name from the first process, names and shapes included. Raises PeerLost."""
        if self.size == 1:
            return dict(tensors)
        about = {name: (str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()}
        mine = dict(tensors) if self.is_first else {}
        for name, (dtype, shape) in self.broadcast(about).items():
            one = mine.setdefault(name, torch.empty(shape, dtype=getattr(torch, dtype)))
            self.broadcast_tensors([_as_bytes(one)])
        return mine

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send CPU tensors to the first process, which must call `receive`; safe in a thread. Raises PeerLost."""
        about = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
        said = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
        with _others():
            for one in (torch.tensor(len(said)), said, *tensors.values()):
                torch.distributed.send(_as_bytes(one), 0, group=self.words)

    def receive(self, rank: int) -> dict[str, Tensor]:
        """Receive the tensors sent by process `rank`. Raises PeerLost."""
        with _others():

            def fill(one: Tensor) -> Tensor:
                torch.distributed.recv(_as_bytes(one), rank, group=self.words)
                return one

            said = fill(torch.empty(int(fill(torch.tensor(0))), dtype=torch.uint8))
            about = json.loads(bytes(said.tolist()))
            return {name: fill(torch.empty(shape, dtype=getattr(torch, dtype))) for name, dtype, shape in about}

    def shorten_timeout(self, *groups: Any) -> None:
        """Shorten the collective timeout to STEP_TIMEOUT_S after the first step. groups: further groups to change.

        PyTorch has no public function for this; torchtitan calls the same private function.
        """
        if self.size > 1:
            patience = timedelta(seconds=timeout_s(STEP_TIMEOUT_S))
            for group in (None, self.quick, *groups):
                torch.distributed.distributed_c10d._set_pg_timeout(patience, group)

    def check_equal(self, digests: Mapping[str, str]) -> None:
        """Raise Refused on a process whose digests differ from the first process, and PeerLost on the others."""
        if self.size == 1:
            return
        theirs = self.broadcast(digests)
        odd = ", ".join(
            f"{name} ({digests[name]} instead of {theirs[name]})" for name in digests if digests[name] != theirs[name]
        )
        differs = torch.zeros(self.size)
        differs[self.rank] = bool(odd)
        with _others():
            torch.distributed.all_reduce(differs, group=self.words)
        if odd:
            raise Refused(
                f"node {node()} differs from node 0: {odd}. Versions, settings and data must be equal on all nodes"
            )
        if differs.any():
            raise PeerLost("a node differs from node 0; the log of the differing node names the difference")


@contextmanager
def join_process_group() -> Iterator[Ranks]:
    """Join the process group if torchrun started several processes. Raises PeerLost when a process does not join."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    if os.environ["RANK"] != "0":
        os.environ.pop("SLIPWAY_RECORDS", None)  # only the first process writes events
    with _others():
        patience = timedelta(seconds=timeout_s(FIRST_TIMEOUT_S))
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=patience)
        words = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=WRITE_TIMEOUT_S))
        quick = torch.distributed.new_group(backend="gloo", timeout=patience)
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    yield Ranks(torch.distributed.get_rank(), size, per_node, words, quick)
    torch.distributed.destroy_process_group()  # skipped on errors, where destroying would wait for lost peers


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
    """Convert PyTorch's RuntimeErrors for lost peers to PeerLost.

    only: a pattern the message must match, for blocks where other RuntimeErrors may occur.
    """
    try:
        yield
    except RuntimeError as error:
        if only and not only.search(str(error)) and not isinstance(error, torch.distributed.DistError):
            raise
        raise PeerLost(f"a process of this run exited or does not answer: {error}") from error


def convert_peer_errors() -> AbstractContextManager[None]:
    """Convert communication errors during a pass through a sharded model to PeerLost."""
    return _others(GONE)
