"""One model cut over several processes, so that none has to hold it whole: PyTorch's FSDP2.

In: a decoder, the `Ranks`, `fsdp` (cut over all processes) or `hybrid` (over those of each node, every node a copy).
Out: the decoder changed in place, and an `FsdpCut`: which rows of every parameter this process has. Of a parameter of
N rows that is piece `rank` of `torch.chunk(N, size)`; gradients and the optimizer's state are cut alike. A block is put
together just before it computes, in the dtype of activations, and dropped again; what lies outside of blocks stays
whole through the forward and the backward pass, in the same dtype. Where memory allows (`is_held`) all of it comes
together once a step, and gradients travel on its last pass only. Source of the order of things: torchtitan's
`parallelize` for dense decoders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder
from trainer.parallel.process_group import FIRST_TIMEOUT_S, Ranks, passing, timeout_s


@dataclass(frozen=True)
class FsdpCut:
    """The piece of the model that this process has, and the number of pieces. One of one: the model is whole here."""

    rank: int = 0
    size: int = 1
    copies: int = 1  # hybrid: in how many places each piece is
    group: Any = None  # the processes that make up one copy, in the order of their pieces
    is_held: bool = False  # parameters stay together for all passes of a step

    @property
    def is_whole(self) -> bool:
        """Return whether every process has the parameters whole, whatever else is cut."""
        return self.size == 1

    def part(self, tensor: Tensor) -> Tensor:
        """Return the rows of a parameter that this process changes; they share their memory with it."""
        return part_of(tensor)

    def grad(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the gradient of these rows, summed over all processes; None where there is none."""
        return None if parameter.grad is None else part_of(parameter.grad)

    def before_pass(self, model: Any, is_last: bool) -> None:
        """Make ready for a pass of a step: gradients need to be the sums over all processes after the last one only."""
        if self.size > 1:
            model.set_requires_all_reduce(is_last)
        if self.is_held:
            model.set_requires_gradient_sync(is_last)
            model.set_reshard_after_backward(is_last)

    def reduced(self) -> None:
        """Wait until the gradients are summed over all processes. Raises PeerLost."""

    def changed(self) -> None:
        """Give the others the rows that the optimizer has changed here, and take theirs. Raises PeerLost."""

    def clear(self) -> None:
        """Forget the gradients."""

    def rows(self, num_rows: int) -> slice:
        """Return the rows of a parameter of so many that are here."""
        each = -(-num_rows // self.size)
        return slice(min(self.rank * each, num_rows), min((self.rank + 1) * each, num_rows))

    def sizes(self, num_rows: int) -> list[int]:
        """Return the number of rows of each process."""
        each = -(-num_rows // self.size)
        return [max(0, min(each, num_rows - rank * each)) for rank in range(self.size)]

    def norm(self, mine: Tensor) -> Tensor:
        """Return the norm of the whole, where `mine` (a scalar) is that of the pieces here. Raises PeerLost."""
        if self.size == 1:
            return mine
        squares = mine.square()
        with passing():
            torch.distributed.all_reduce(squares, group=self.group)
        return squares.sqrt()

    def whole(self, pieces: Tensor, num_rows: int) -> Tensor:
        """Return the share of this process of some matrices, whole: (its N, num_rows, columns).

        pieces: (N, rows here, columns).
        """
        n, _, columns = pieces.shape
        mine, sizes = self._shares(n), self.sizes(num_rows)  # numbers of matrices and of rows of each process
        got = self._swap(
            pieces.flatten(),
            [count * pieces[0].numel() for count in mine],
            [mine[self.rank] * rows * columns for rows in sizes],
        )
        parts = zip(got, sizes, strict=True)
        return torch.cat([part.view(mine[self.rank], rows, columns) for part, rows in parts], dim=1)

    def pieces(self, whole: Tensor, n: int, rows_here: int) -> Tensor:
        """Return the inverse of `whole`: (N, rows here, columns) of (its N, rows, columns)."""
        mine, (_, num_rows, columns) = self._shares(n), whole.shape
        parts = whole.split(self.sizes(num_rows), dim=1)
        got = self._swap(
            torch.cat([part.flatten() for part in parts]),
            [part.numel() for part in parts],
            [count * rows_here * columns for count in mine],
        )
        return torch.cat([part.view(count, rows_here, columns) for part, count in zip(got, mine, strict=True)])

    def _shares(self, n: int) -> list[int]:
        """Return the number of whole matrices, out of n, of each process."""
        ends = [n * rank // self.size for rank in range(self.size + 1)]
        return [end - start for start, end in zip(ends, ends[1:], strict=False)]

    def _swap(self, given: Tensor, out: list[int], back: list[int]) -> list[Tensor]:
        """Give each process its section of everybody's `given`; `out` and `back` are the sections' lengths."""
        got = given.new_empty(sum(back))
        with passing():
            torch.distributed.all_to_all_single(got, given, back, out, group=self.group)
        return list(got.split(back))

    def deal(self, mine: Mapping[str, Tensor], whole: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Fill the pieces here from what the first process has whole, one tensor at a time. Raises PeerLost.

        whole: read on the first process only. A tensor without rows, or with as many as are here, is taken as it is.
        """
        shapes = ranks.tell({name: list(whole[name].shape) for name in mine} if ranks.is_first else None)
        for name, part in mine.items():
            shape = shapes[name]
            if ranks.is_first:
                full = whole[name].to(device=part.device, dtype=part.dtype).contiguous()
            else:
                full = torch.empty(shape, dtype=part.dtype, device=part.device)
            ranks.spread([full])
            part.copy_(full if not shape else full[self.rows(shape[0])])


WHOLE = FsdpCut()


def part_of(tensor: Tensor) -> Tensor:
    """Return the rows of a parameter, or of its gradient, that are here; they share their memory with it."""
    found = tensor.detach()
    return found.to_local() if hasattr(found, "to_local") else found


def parts_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: part_of(one) for name, one in tensors.items()}


def cut(model: Decoder, parallel: str, ranks: Ranks, method: str = "through", is_held: bool = False) -> FsdpCut:
    """Cut it in place, with parameters that are yet to be filled where it lies on no device.

    method: of the model, by which it is called: what lies outside of blocks comes together as that begins. is_held:
    keep it together from the first pass of a step to the last: as much memory as the whole has in the dtype of
    activations, and its gradients. Raises PeerLost when the others do not come.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    size = ranks.per_node if parallel == "hybrid" else ranks.size
    ids = torch.arange(ranks.size).view(-1, size)  # (copies, pieces)
    with passing():
        rows, columns = _groups(ids.tolist(), ranks.rank), _groups(ids.t().tolist(), ranks.rank)
    if parallel == "hybrid":
        mesh = DeviceMesh.from_group([columns, rows], kind, ids, mesh_dim_names=("copies", "pieces"))
    else:
        mesh = DeviceMesh.from_group(rows, kind, ids[0])
    # the mean is taken over counted tokens, not over processes, so gradients are only summed: see `ranks`
    # masters come together in float32: where they are rounded hangs on their last bits
    is_wide = model.compute_dtype == torch.float32 or model.config.has_masters
    width = None if is_wide else model.compute_dtype
    policy = MixedPrecisionPolicy(param_dtype=width, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.model.layers:
        _summing(fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_held))
        register_fsdp_forward_method(block, "projected")
    _summing(fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False))
    register_fsdp_forward_method(model, method)
    return FsdpCut(ranks.rank % size, size, ranks.size // size, rows, is_held)


def _groups(members: Sequence[Sequence[int]], rank: int) -> Any:
    """Return the group that this process is in; every process makes all of them, in the same order."""
    made = [
        torch.distributed.new_group(list(one), timeout=timedelta(seconds=timeout_s(FIRST_TIMEOUT_S))) for one in members
    ]
    return next(group for group, one in zip(made, members, strict=True) if rank in one)


def _summing(module: Any) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
