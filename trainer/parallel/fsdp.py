"""Fully sharded training with PyTorch's FSDP2: parameters, gradients and optimizer state are sharded over processes.

`shard_model` shards a decoder in place, over all processes (`fsdp`) or within each node with replicas across nodes
(`hybrid`), and returns an `FsdpSharding` describing the rows of this process: chunk `rank` of `torch.chunk(N, size)`
for a parameter of N rows. FSDP gathers a block in the dtype of activations just before use and frees the copy
afterwards; parameters outside the blocks stay gathered through forward and backward. With `is_held`, all parameters
stay gathered for the whole step, and gradients are reduced on the last pass only. Source of the wrapping order:
torchtitan's `parallelize` for dense decoders.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder
from trainer.parallel.process_group import FIRST_TIMEOUT_S, Ranks, convert_peer_errors, timeout_s


@dataclass(frozen=True)
class FsdpSharding:
    """The shard of the model in this process. `size` 1 means an unsharded model."""

    rank: int = 0
    size: int = 1
    copies: int = 1  # number of replicas of each shard (hybrid)
    group: Any = None  # process group of one replica, in shard order
    is_held: bool = False  # keep parameters gathered for all passes of a step

    @property
    def has_full_params(self) -> bool:
        """Return whether every process has the whole learning parameters; the optimizer state may still be sharded."""
        return self.size == 1

    def local_rows(self, tensor: Tensor) -> Tensor:
        """Return a view of the rows of a parameter updated by this process."""
        return local_shard(tensor)

    def local_grad(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the gradient of this process's rows, summed over all processes, or None without a gradient."""
        return None if parameter.grad is None else local_shard(parameter.grad)

    def prepare_pass(self, model: Any, is_last: bool) -> None:
        """Configure FSDP for a pass of a step: delay gradient reduction across processes until the last pass."""
        if self.size > 1:
            model.set_requires_all_reduce(is_last)
        if self.is_held:
            model.set_requires_gradient_sync(is_last)
            model.set_reshard_after_backward(is_last)

    def wait_reduced(self) -> None:
        """Wait until gradients are summed over all processes; no-op under FSDP. Raises PeerLost."""

    def all_gather_updates(self) -> None:
        """Exchange updated rows between processes after an optimizer step; no-op under FSDP. Raises PeerLost."""

    def clear(self) -> None:
        """Drop stored gradients; no-op under FSDP."""

    def row_range(self, num_rows: int) -> slice:
        """Return the row range of this process for a parameter of `num_rows` rows."""
        each = -(-num_rows // self.size)
        return slice(min(self.rank * each, num_rows), min((self.rank + 1) * each, num_rows))

    def rows_per_rank(self, num_rows: int) -> list[int]:
        """Return the number of rows per process for a parameter of `num_rows` rows."""
        each = -(-num_rows // self.size)
        return [max(0, min(each, num_rows - rank * each)) for rank in range(self.size)]

    def norm(self, mine: Tensor) -> Tensor:
        """Return the global norm from the norm of this process's shards, `mine` (a scalar). Raises PeerLost."""
        if self.size == 1:
            return mine
        squares = mine.square()
        with convert_peer_errors():
            torch.distributed.all_reduce(squares, group=self.group)
        return squares.sqrt()

    def gather_matrices(self, pieces: Tensor, num_rows: int) -> Tensor:
        """Distribute N matrices over the processes; return the whole matrices of this process, (n, num_rows, columns).

        pieces: (N, rows, columns), this process's rows of all N matrices; n is the share from `_matrices_per_rank`.
        """
        n, _, columns = pieces.shape
        mine, sizes = self._matrices_per_rank(n), self.rows_per_rank(num_rows)  # matrices and rows per process
        got = self._all_to_all(
            pieces.flatten(),
            [count * pieces[0].numel() for count in mine],
            [mine[self.rank] * rows * columns for rows in sizes],
        )
        parts = zip(got, sizes, strict=True)
        return torch.cat([part.view(mine[self.rank], rows, columns) for part, rows in parts], dim=1)

    def scatter_matrices(self, whole: Tensor, n: int, rows_here: int) -> Tensor:
        """Invert `whole`: return this process's rows of all `n` matrices, (n, rows_here, columns)."""
        mine, (_, num_rows, columns) = self._matrices_per_rank(n), whole.shape
        parts = whole.split(self.rows_per_rank(num_rows), dim=1)
        got = self._all_to_all(
            torch.cat([part.flatten() for part in parts]),
            [part.numel() for part in parts],
            [count * rows_here * columns for count in mine],
        )
        return torch.cat([part.view(count, rows_here, columns) for part, count in zip(got, mine, strict=True)])

    def _matrices_per_rank(self, n: int) -> list[int]:
        """Return the number of whole matrices per process, out of `n`."""
        ends = [n * rank // self.size for rank in range(self.size + 1)]
        return [end - start for start, end in zip(ends, ends[1:], strict=False)]

    def _all_to_all(self, given: Tensor, out: list[int], back: list[int]) -> list[Tensor]:
        """Run an all-to-all exchange of `given`; `out` and `back` are the sent and received lengths per process."""
        got = given.new_empty(sum(back))
        with convert_peer_errors():
            torch.distributed.all_to_all_single(got, given, back, out, group=self.group)
        return list(got.split(back))

    def scatter_weights(self, mine: Mapping[str, Tensor], whole: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Fill the shards of all processes from the whole tensors of the first process. Raises PeerLost.

        mine: shards to fill in place. whole: read on the first process only, one tensor in memory at a time. A
        0-dimensional tensor is copied whole.
        """
        shapes = ranks.broadcast({name: list(whole[name].shape) for name in mine} if ranks.is_first else None)
        for name, part in mine.items():
            shape = shapes[name]
            if ranks.is_first:
                full = whole[name].to(device=part.device, dtype=part.dtype).contiguous()
            else:
                full = torch.empty(shape, dtype=part.dtype, device=part.device)
            ranks.broadcast_tensors([full])
            part.copy_(full if not shape else full[self.row_range(shape[0])])


WHOLE = FsdpSharding()


def local_shard(tensor: Tensor) -> Tensor:
    """Return the local shard of a parameter or gradient, detached and sharing memory."""
    found = tensor.detach()
    return found.to_local() if hasattr(found, "to_local") else found


def parts_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: local_shard(one) for name, one in tensors.items()}


def shard_model(
    model: Decoder,
    parallel: str,
    ranks: Ranks,
    method: str = "compute_objective",
    is_held: bool = False,
    whole: Collection[nn.Parameter] = (),
) -> FsdpSharding:
    """Shard a decoder in place with FSDP2. Parameters on `meta` stay uninitialized. Raises PeerLost on a timeout.

    parallel: `fsdp` or `hybrid`. method: the entry method of the model, at which FSDP gathers the parameters outside
    the blocks. is_held: keep parameters gathered from the first pass of a step to the last, which takes the memory of
    the whole model in the dtype of activations plus unreduced gradients. whole: parameters that every process keeps
    whole, such as those of an adapter.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    size = ranks.per_node if parallel == "hybrid" else ranks.size
    ids = torch.arange(ranks.size).view(-1, size)  # (copies, pieces)
    with convert_peer_errors():
        rows, columns = _groups(ids.tolist(), ranks.rank), _groups(ids.t().tolist(), ranks.rank)
    if parallel == "hybrid":
        mesh = DeviceMesh.from_group([columns, rows], kind, ids, mesh_dim_names=("copies", "pieces"))
    else:
        mesh = DeviceMesh.from_group(rows, kind, ids[0])
    # Gradients are summed, not averaged: the loss is already divided by the counted tokens of all processes.
    # Masters are gathered in float32, because their rounding depends on the last bits.
    is_wide = model.compute_dtype == torch.float32 or model.config.has_masters
    width = None if is_wide else model.compute_dtype
    policy = MixedPrecisionPolicy(param_dtype=width, reduce_dtype=torch.float32, cast_forward_inputs=False)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "ignored_params": {*whole}}
    for block in model.model.layers:
        _summing(fully_shard(block, **options, reshard_after_forward=not is_held))
        register_fsdp_forward_method(block, "project_qkv")
    _summing(fully_shard(model, **options, reshard_after_forward=False))
    register_fsdp_forward_method(model, method)
    return FsdpSharding(ranks.rank % size, size, ranks.size // size, rows, is_held)


def _groups(members: Sequence[Sequence[int]], rank: int) -> Any:
    """Create all process groups, in the same order on every process, and return the group containing `rank`."""
    made = [
        torch.distributed.new_group(list(one), timeout=timedelta(seconds=timeout_s(FIRST_TIMEOUT_S))) for one in members
    ]
    return next(group for group, one in zip(made, members, strict=True) if rank in one)


def _summing(module: Any) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
