"""Objectives: each turns a model and a batch into a summed loss, which a phase minimises.

In: a decoder, a batch as named arrays. Out: the sum of the loss over the rows at hand, and figures of it. The loop
divides both by the objective's `count` of the whole batch, so that a step is the same whatever number of micro-batches
and processes its rows are dealt to.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from trainer.model.decoder import IGNORED, Decoder

Batch = Mapping[str, np.ndarray]
"""Arrays by name, each (rows, ...): `ids` and `targets` (rows, T), int64, a target of -1 is not counted; `documents`
where a token sees its own document only; and what an objective asks for, floats too. Where the rows do not come out
even over micro-batches and processes there are some more, with -1 in `targets` and 0 in all else: they must add
nothing."""


class Objective(Protocol):
    """One way to learn from batches. Made once by its phase; pure but for what `at` sets."""

    def count(self, batch: Batch) -> float:
        """Return the divisor of the loss of all rows of a step; 0 divides nothing."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (fp32 scalar) and the figures (scalars, detached, the same names for every batch).

        All of them are sums over the rows of this micro-batch.
        """

    def at(self, step: int) -> None:
        """Make ready for the step after so many.

        What changes from step to step is kept in tensors without dimensions and changed in place: compiled code takes a
        number for a constant, and is compiled again for each.
        """


class CrossEntropy:
    """The next token, or whichever `targets` says: nats per token that counts."""

    def count(self, batch: Batch) -> float:
        return float((batch["targets"] != IGNORED).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = (batch.get(name) for name in ("documents", "bounds", "counted"))
        return model.loss(batch["ids"], batch["targets"], *given), {}

    def at(self, step: int) -> None:
        pass
