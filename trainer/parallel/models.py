"""Models of a phase, filled by the first process and distributed to all processes.

    shape, `fill` -> `ModelPlacement.trained` or `frozen` -> the model, or the shards of this process

Only the first process calls `fill`, which reads weights or draws them from the seed. The other processes receive the
weights from the first process: at once for sharded and frozen models, and at the start of training for a whole trained
model.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.config import PhaseConfig
from trainer.device import Machine
from trainer.model.changes import ModelChange
from trainer.model.decoder import Decoder, uninitialized_decoder
from trainer.parallel.fsdp import WHOLE, FsdpSharding, parts_of, shard_model
from trainer.parallel.placement import is_held
from trainer.parallel.process_group import Ranks
from trainer.parallel.zero import shard_optimizer_state
from trainer.records.model_config import ModelConfig

Fill = Callable[[Decoder], None]


@dataclass(frozen=True)
class ModelPlacement:
    """The processes, the device and the layout of the models of a phase."""

    config: PhaseConfig
    machine: Machine
    ranks: Ranks
    parallel: str
    """`ddp`, `fsdp` or `hybrid`."""
    frozen_groups: list[Any] = field(default_factory=list)
    """Process groups with the shards of frozen models."""

    @property
    def is_whole(self) -> bool:
        """Return whether every process has whole models."""
        return self.parallel == "ddp"

    def trained(self, shape: ModelConfig, fill: Fill) -> tuple[Decoder, FsdpSharding]:
        """Return a model that learns, and its sharding. Raises PeerLost."""
        model = self._uninitialized(shape, self._first_device if self.is_whole else "meta")
        if self.is_whole:
            if self.ranks.is_first:
                fill(model)
                model.to(self.machine.device)
            return model, self.learning(model)
        # Shard before the slow `fill`: creating process groups has a shorter timeout.
        held = is_held(self.config, self.parallel, self.ranks, self.machine)
        sharding = shard_model(model, self.parallel, self.ranks, is_held=held)
        self._fill_shards(model, sharding, fill, model.state_dict().keys())
        return model, sharding

    def frozen(
        self, shape: ModelConfig, fill: Fill, compressed: ModelChange | None = None, attached: ModelChange | None = None
    ) -> Decoder:
        """Return a model without gradients in the dtype of activations. Raises PeerLost.

        compressed: the change that makes the weights of a whole model smaller; FSDP shards the weights as they are.
        attached: the change whose learning parameters are added without values; every process keeps them whole.
        """
        model = self._frozen_shape(shape)
        if self.is_whole:
            return self._whole_frozen(model, fill, compressed, attached)
        base = model.state_dict().keys()
        if attached:
            attached.attach(model, self.config)
        added = [one for name, one in model.named_parameters() if name not in base]
        sharding = shard_model(
            model, self.parallel, self.ranks, "compute_objective" if attached else "hidden", whole=added
        )
        self.frozen_groups.append(sharding.group)
        self._fill_shards(model, sharding, fill, base, is_frozen=True)
        return model

    def learning(self, model: Decoder) -> FsdpSharding:
        """Return the sharding of the optimizer state of whole learning parameters. Raises PeerLost."""
        return shard_optimizer_state(model, self.ranks) if self.ranks.size > 1 else WHOLE

    def alone(self) -> "ModelPlacement":
        """Return the placement of whole models in this process only."""
        return ModelPlacement(self.config, self.machine, Ranks(), "ddp")

    @property
    def _dtype(self) -> torch.dtype:
        return self.machine.dtype(self.config)

    @property
    def _first_device(self) -> torch.device:
        """Return the device on which a whole model is filled, or received."""
        return torch.device("cpu") if self.ranks.is_first else self.machine.device

    def _frozen_shape(self, shape: ModelConfig) -> Decoder:
        """Return a frozen model on the meta device, in the dtype of activations, which needs half of the memory."""
        return self._uninitialized(shape, "meta").to(self._dtype).eval().requires_grad_(False)

    def _uninitialized(self, shape: ModelConfig, device: torch.device | str) -> Decoder:
        return uninitialized_decoder(shape, self._dtype, device)

    def _whole_frozen(
        self, model: Decoder, fill: Fill, compressed: ModelChange | None, attached: ModelChange | None
    ) -> Decoder:
        device = self.machine.device
        if compressed and not self.ranks.is_first:
            compressed.compress(model, self.config, device)
        model.to_empty(device=self._first_device)
        if self.ranks.is_first:
            fill(model)
            if compressed:
                compressed.compress(model, self.config, device)
            model.to(device)
        self.ranks.broadcast_tensors(model.state_dict().values())
        if attached:
            attached.attach(model, self.config)
        return model

    def _fill_shards(
        self, model: Decoder, sharding: FsdpSharding, fill: Fill, names: Collection[str], is_frozen: bool = False
    ) -> None:
        """Allocate a sharded model, and fill the tensors `names` from the first process."""
        model.to_empty(device=self.machine.device)
        first: Mapping[str, Tensor] = {}
        if self.ranks.is_first:
            shape = model.config
            whole = self._frozen_shape(shape).to_empty(device="cpu") if is_frozen else self._uninitialized(shape, "cpu")
            fill(whole)
            first = whole.state_dict()
        mine = {name: one for name, one in model.state_dict().items() if name in names}
        sharding.scatter_weights(parts_of(mine), first, self.ranks)
