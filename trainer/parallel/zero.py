"""ZeRO stage 1: every process holds the whole learning parameters, and the optimizer state is sharded by rows.

`shard_optimizer_state` returns an `FsdpSharding` in which every process updates some rows of each parameter. During the
backward pass of a step's last micro-batch, the gradients of a block are reduce-scattered once complete, overlapping
with the remaining backward pass, and freed. After the update, an all-gather distributes the new rows. The traffic
equals an all-reduce of the gradients. Sources: Rajbhandari et al., arXiv 1910.02054; the buckets of PyTorch's
DistributedDataParallel.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder
from trainer.parallel.fsdp import FsdpSharding
from trainer.parallel.process_group import Ranks, convert_peer_errors


@dataclass
class Unit:
    """A communication bucket: parameters with jointly reduced gradients."""

    parameters: list[nn.Parameter]
    missing: int = 0  # number of gradients not computed yet
    reduction: tuple[Any, Tensor, Tensor] | None = None  # handle, send buffer, receive buffer


@dataclass(frozen=True)
class Shared(FsdpSharding):
    """The rows of every learning parameter updated by this process; the learning parameters themselves are whole."""

    units: list[Unit] = field(default_factory=list)  # in backward order
    owner: dict[nn.Parameter, Unit] = field(default_factory=dict)
    grads: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # summed gradients of this process's rows
    waiting: list[Unit] = field(default_factory=list)  # units to reduce, in equal order on all processes

    @property
    def has_full_params(self) -> bool:
        return True

    def local_rows(self, tensor: Tensor) -> Tensor:
        """Return a view of the rows of a parameter updated by this process."""
        return tensor.detach()[self.row_range(len(tensor))]

    def local_grad(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the summed gradient of this process's rows, or None before `reduced`."""
        return self.grads.get(parameter)

    def prepare_pass(self, model: Any, is_last: bool) -> None:
        """Queue all units for reduction before the last pass of a step."""
        if is_last:
            self.waiting[:] = self.units
            for unit in self.units:
                unit.missing = len(unit.parameters)

    def on_grad_ready(self, parameter: nn.Parameter) -> None:
        """Count a finished gradient and start the reduction of complete units; called by the backward hook."""
        if not self.waiting:
            return
        self.owner[parameter].missing -= 1
        while self.waiting and not self.waiting[0].missing:
            self._send(self.waiting.pop(0))

    def wait_reduced(self) -> None:
        """Wait until the gradients of this process's rows are summed over all processes. Raises PeerLost."""
        with convert_peer_errors():
            while self.waiting:
                self._send(self.waiting.pop(0))
            for unit in self.units:
                if unit.reduction is None:
                    continue
                work, _, mine = unit.reduction
                work.wait()
                unit.reduction = None
                for parameter, piece in zip(unit.parameters, self._local_views(unit, mine), strict=True):
                    self.grads[parameter] = piece

    def all_gather_updates(self) -> None:
        """Distribute the updated rows of every process with an all-gather. Raises PeerLost."""
        begun: list[tuple[Unit, Any, Tensor, Tensor]] = []
        with convert_peer_errors():
            for unit in reversed(self.units):  # in forward order, two all-gathers in flight
                mine = unit.parameters[0].new_zeros(sum(self._widths(unit)))
                for piece, parameter in zip(self._local_views(unit, mine), unit.parameters, strict=True):
                    piece.copy_(self.local_rows(parameter))
                every = mine.new_empty(self.size * len(mine))
                work = torch.distributed.all_gather_single(every, mine, group=self.group, async_op=True)
                begun.append((unit, work, mine, every))
                if len(begun) > 1:
                    self._copy_gathered(*begun.pop(0))
            for one in begun:
                self._copy_gathered(*one)

    def clear(self) -> None:
        """Drop the summed gradients and the queue."""
        self.grads.clear()
        self.waiting.clear()

    def _copy_gathered(self, unit: Unit, work: Any, mine: Tensor, every: Tensor) -> None:
        """Wait for an all-gather and copy the rows into the parameters of the unit."""
        work.wait()
        for parameter, place in zip(unit.parameters, self._buffer_views(unit, every), strict=True):
            whole = parameter.detach()
            if len(whole) % self.size == 0:
                whole.view(self.size, -1).copy_(place)
            else:
                for rows, start, piece in self._by_rank(whole, place):
                    whole[start : start + rows] = piece

    def _send(self, unit: Unit) -> None:
        """Start the reduce-scatter of a unit's gradients and free the local gradients."""
        first = unit.parameters[0]
        given = first.new_zeros(self.size * sum(self._widths(unit)))
        for parameter, place in zip(unit.parameters, self._buffer_views(unit, given), strict=True):
            if parameter.grad is None:
                continue
            if len(parameter) % self.size == 0:
                place.copy_(parameter.grad.view(self.size, -1))
            else:
                for rows, start, piece in self._by_rank(parameter.grad, place):
                    piece.copy_(parameter.grad[start : start + rows])
            parameter.grad = None
        mine = given.new_empty(len(given) // self.size)
        work = torch.distributed.reduce_scatter_single(mine, given, group=self.group, async_op=True)
        unit.reduction = (work, given, mine)

    def _widths(self, unit: Unit) -> list[int]:
        """Return the elements per process of each parameter, padded to equal size on all processes."""
        return [-(-len(one) // self.size) * (one.numel() // len(one)) for one in unit.parameters]

    def _buffer_views(self, unit: Unit, every: Tensor) -> Sequence[Tensor]:
        """Return the view (size, width) of each parameter in the buffer of all processes."""
        return every.view(self.size, -1).split(self._widths(unit), dim=1)

    def _local_views(self, unit: Unit, mine: Tensor) -> Iterator[Tensor]:
        """Yield the view of each parameter's rows in the buffer of this process."""
        for parameter, flat in zip(unit.parameters, mine.split(self._widths(unit)), strict=True):
            rows = self.rows_per_rank(len(parameter))[self.rank]
            yield flat[: rows * (parameter.numel() // len(parameter))].view(rows, *parameter.shape[1:])

    def _by_rank(self, whole: Tensor, place: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (number of rows, first row, buffer view) of a parameter for each process."""
        start = 0
        for rank, rows in enumerate(self.rows_per_rank(len(whole))):
            yield rows, start, place[rank, : rows * (whole.numel() // len(whole))].view(rows, *whole.shape[1:])
            start += rows


def shard_optimizer_state(model: Decoder, ranks: Ranks) -> FsdpSharding:
    """Shard the optimizer state over all processes and register the gradient hooks of the model."""
    learning = ([one for one in some if one.requires_grad] for some in _units(model))
    units = [Unit(some) for some in learning if some]
    cut = Shared(ranks.rank, ranks.size, units=units, owner={one: unit for unit in units for one in unit.parameters})
    its = weakref.ref(cut)  # a strong reference from the hook would form a cycle that is never freed

    def arrived(parameter: nn.Parameter) -> None:
        if found := its():
            found.on_grad_ready(parameter)

    for parameter in cut.owner:
        parameter.register_post_accumulate_grad_hook(arrived)
    return cut


def _units(model: Decoder) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in backward order, by unit; a tied head belongs to the embedding, the last unit.

    The last unit holds all other parameters, also the parameters of packs.
    """
    trunk = model.model
    first = [] if model.config.tie_word_embeddings else list(model.lm_head.parameters())
    units = [[*first, *trunk.norm.parameters()], *(list(block.parameters()) for block in reversed(trunk.layers))]
    yield from units
    known = {id(one) for some in units for one in some}
    yield [one for one in model.parameters() if id(one) not in known]
