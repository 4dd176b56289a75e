"""Training objectives: an objective maps a model and a micro-batch to a summed loss and summed metrics.

The training loop divides loss and metrics by the objective's `count` of the whole batch, so a step does not depend on
the number of micro-batches and processes.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from trainer.model.decoder import IGNORED, Decoder

Batch = Mapping[str, np.ndarray]
"""Arrays by name, each (rows, ...): `ids` and `targets` (rows, T), int64, where targets of -1 are ignored; `documents`
(rows, T) for attention within documents; and further arrays required by an objective. To divide the rows evenly over
micro-batches and processes, the loop adds rows with -1 in `targets` and 0 in all other arrays; such rows must add 0 to
the loss."""


class Objective(Protocol):
    """A training objective, created once per phase and stateless except for values set by `at`."""

    def loss_divisor(self, batch: Batch) -> float:
        """Return the divisor of the loss for all rows of a step, such as the number of targets; 0 means no division."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (fp32 scalar) and metrics by name (detached scalars), summed over the rows of a micro-batch.

        The metric names must be equal for every batch.
        """

    def set_step(self, step: int, steps: int) -> None:
        """Prepare for the step with index `step`, counted from 0, of `steps`.

        Store values varying by step in 0-dimensional tensors and update them in place: compiled code treats a Python
        number as a constant and recompiles for every value.
        """


class CrossEntropy:
    """Cross entropy of the ids in `targets` (next-token prediction): nats per counted token."""

    def loss_divisor(self, batch: Batch) -> float:
        return float((batch["targets"] != IGNORED).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        given = (batch.get(name) for name in ("documents", "bounds", "counted"))
        return model.loss(batch["ids"], batch["targets"], *given), {}

    def set_step(self, step: int, steps: int) -> None:
        pass
