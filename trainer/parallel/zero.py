"""A model that is whole in every process, and an optimizer that none has whole: ZeRO's first stage.

In: a decoder, the `Ranks`. Out: an `FsdpCut` of rows: all processes have all parameters, and each changes some rows. In
the backward part of a step's last pass the gradients of a block are sent off as soon as they are all there, added up by
their owners while the blocks before it compute, and dropped; after the update each process is given the rows of the
others. That moves as many bytes as adding all gradients up everywhere, and keeps one part of the optimizer's state.
Sources: Rajbhandari et al., arXiv 1910.02054; the buckets of PyTorch's DistributedDataParallel.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.decoder import Decoder
from trainer.parallel.fsdp import FsdpCut
from trainer.parallel.process_group import Ranks, passing


@dataclass
class Unit:
    """Parameters whose gradients travel together, and where each begins in what one process has of them."""

    parameters: list[nn.Parameter]
    missing: int = 0  # gradients that are not there yet
    under_way: tuple[Any, Tensor, Tensor] | None = None  # the work, what is sent, what comes of it


@dataclass(frozen=True)
class Shared(FsdpCut):
    """The rows of every parameter that this process updates. Its model is whole."""

    units: list[Unit] = field(default_factory=list)  # in the order in which gradients are made
    owner: dict[nn.Parameter, Unit] = field(default_factory=dict)
    grads: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # summed, of the rows here
    waiting: list[Unit] = field(default_factory=list)  # to be sent off, in an order that is the same everywhere

    @property
    def is_whole(self) -> bool:
        return True

    def part(self, tensor: Tensor) -> Tensor:
        """Return the rows of a parameter that this process changes; they share their memory with it."""
        return tensor.detach()[self.rows(len(tensor))]

    def grad(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the gradient of these rows, summed over all processes; None before `reduced`."""
        return self.grads.get(parameter)

    def before_pass(self, model: Any, is_last: bool) -> None:
        """Make ready: on the last pass gradients are sent off as they come."""
        if is_last:
            self.waiting[:] = self.units
            for unit in self.units:
                unit.missing = len(unit.parameters)

    def arrived(self, parameter: nn.Parameter) -> None:
        """Note that a gradient is there, and send off what is complete; the backward pass calls it."""
        if not self.waiting:
            return
        self.owner[parameter].missing -= 1
        while self.waiting and not self.waiting[0].missing:
            self._send(self.waiting.pop(0))

    def reduced(self) -> None:
        """Wait until the gradients of the rows here are summed over all processes. Raises PeerLost."""
        with passing():
            while self.waiting:
                self._send(self.waiting.pop(0))
            for unit in self.units:
                if unit.under_way is None:
                    continue
                work, _, mine = unit.under_way
                work.wait()
                unit.under_way = None
                for parameter, piece in zip(unit.parameters, self._pieces(unit, mine), strict=True):
                    self.grads[parameter] = piece

    def changed(self) -> None:
        """Give the others the rows that were changed here, and take theirs. Raises PeerLost."""
        begun: list[tuple[Unit, Any, Tensor, Tensor]] = []
        with passing():
            for unit in reversed(self.units):  # in the order of the next pass; two are under way at a time
                mine = unit.parameters[0].new_zeros(sum(self._widths(unit)))
                for piece, parameter in zip(self._pieces(unit, mine), unit.parameters, strict=True):
                    piece.copy_(self.part(parameter))
                every = mine.new_empty(self.size * len(mine))
                work = torch.distributed.all_gather_single(every, mine, group=self.group, async_op=True)
                begun.append((unit, work, mine, every))
                if len(begun) > 1:
                    self._take(*begun.pop(0))
            for one in begun:
                self._take(*one)

    def clear(self) -> None:
        """Forget the gradients."""
        self.grads.clear()
        self.waiting.clear()

    def _take(self, unit: Unit, work: Any, mine: Tensor, every: Tensor) -> None:
        """Wait for the rows of the others, and put them where they belong."""
        work.wait()
        for parameter, place in zip(unit.parameters, self._places(unit, every), strict=True):
            whole = parameter.detach()
            if len(whole) % self.size == 0:
                whole.view(self.size, -1).copy_(place)
            else:
                for rows, start, piece in self._by_rank(whole, place):
                    whole[start : start + rows] = piece

    def _send(self, unit: Unit) -> None:
        """Begin to add the gradients of a unit up, each process those of its rows, and drop them here."""
        first = unit.parameters[0]
        given = first.new_zeros(self.size * sum(self._widths(unit)))
        for parameter, place in zip(unit.parameters, self._places(unit, given), strict=True):
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
        unit.under_way = (work, given, mine)

    def _widths(self, unit: Unit) -> list[int]:
        """Return how many numbers of each parameter every process has, padded to the same."""
        return [-(-len(one) // self.size) * (one.numel() // len(one)) for one in unit.parameters]

    def _places(self, unit: Unit, every: Tensor) -> Sequence[Tensor]:
        """Return each parameter's place, (size, width), in what all processes have of a unit."""
        return every.view(self.size, -1).split(self._widths(unit), dim=1)

    def _pieces(self, unit: Unit, mine: Tensor) -> Iterator[Tensor]:
        """Yield the rows of each parameter in what this process has of a unit."""
        for parameter, flat in zip(unit.parameters, mine.split(self._widths(unit)), strict=True):
            rows = self.sizes(len(parameter))[self.rank]
            yield flat[: rows * (parameter.numel() // len(parameter))].view(rows, *parameter.shape[1:])

    def _by_rank(self, whole: Tensor, place: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield for each process the number of its rows, the first of them, and their place."""
        start = 0
        for rank, rows in enumerate(self.sizes(len(whole))):
            yield rows, start, place[rank, : rows * (whole.numel() // len(whole))].view(rows, *whole.shape[1:])
            start += rows


def shared(model: Decoder, ranks: Ranks) -> FsdpCut:
    """Share the work of the optimizer over all processes."""
    units = [Unit(some) for some in _units(model) if some]
    cut = Shared(ranks.rank, ranks.size, units=units, owner={one: unit for unit in units for one in unit.parameters})
    its = weakref.ref(cut)  # Python's collector does not free a parameter whose hook leads back to it

    def arrived(parameter: nn.Parameter) -> None:
        if found := its():
            found.arrived(parameter)

    for parameter in cut.owner:
        parameter.register_post_accumulate_grad_hook(arrived)
    return cut


def _units(model: Decoder) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters as the way back reaches them; a tied head is the embedding, at the end."""
    trunk = model.model
    first = [] if model.config.tie_word_embeddings else list(model.lm_head.parameters())
    yield [*first, *trunk.norm.parameters()]
    for block in reversed(trunk.layers):
        yield list(block.parameters())
    yield [*trunk.embed_tokens.parameters(), *(trunk.embed_norm.parameters() if model.config.embed_norm else ())]
