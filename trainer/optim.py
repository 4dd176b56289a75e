"""AdamW and Muon with a common learning rate schedule.

`Optimizer` updates the parameters of a model in place and exposes its state as named tensors. With several processes,
each process updates its rows of every parameter; for Muon the processes exchange rows so that each orthogonalizes some
whole matrices.
Sources: Loshchilov and Hutter, arXiv 1711.05101 (AdamW); Jordan, "Muon: an optimizer for hidden layers" (2024).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import OptimizerConfig, ScheduleConfig
from trainer.memory import MUON_AT_ONCE
from trainer.model.decoder import Decoder
from trainer.parallel.fsdp import WHOLE, FsdpSharding

MUON_MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def learning_rate_scale(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the fraction of the peak learning rate at `step` (from 0) of `steps`."""
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    begin = max(steps * (1 - schedule.decay), min(schedule.warmup_steps, steps - 1))
    if step < begin or schedule.decay == 0:
        return warmup
    progress = (step - begin) / (steps - begin)
    left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1 - progress
    return warmup * (schedule.final + (1 - schedule.final) * left)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return the approximate nearest (semi-)orthogonal matrices of a stack (N, rows, columns), by Newton-Schulz."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT.contiguous() if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def orthogonalised(stack: Tensor) -> Tensor:
    """Return `orthogonalise` of a stack; on a GPU in place and in chunks of MUON_AT_ONCE elements to bound memory."""
    if not stack.is_cuda:
        return orthogonalise(stack)
    for some in stack.split(max(1, MUON_AT_ONCE // max(1, stack[0].numel()))) if len(stack) else ():
        some.copy_(orthogonalise(some))
    return stack


@dataclass(frozen=True)
class Group:
    """Parameters with equal learning rate and weight decay, and their optimizer state."""

    parameters: list[nn.Parameter]
    lr: float  # peak learning rate
    decay: float
    state: dict[str, list[Tensor]]  # by state name, in parameter order


class Optimizer:
    """The optimizer of the learning parameters: AdamW, and Muon for matrices inside blocks if `muon_lr` is above 0.

    State tensors cover the rows of this process only: see `FsdpSharding`.
    Not a torch.optim.Optimizer: creating one imports PyTorch's compiler, which doubles the start time of the program.
    """

    def __init__(self, model: Decoder, config: OptimizerConfig, sharding: FsdpSharding = WHOLE) -> None:
        self.config, self.dtype, self.sharding = config, model.compute_dtype, sharding
        self.names = {one: name for name, one in model.named_parameters() if one.requires_grad}
        self.updates = 0
        rates = {"model.embed_tokens.weight": config.embed_lr, "lm_head.weight": config.head_lr}
        alike: dict[tuple[float, float], list[nn.Parameter]] = {}
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter, name in self.names.items():
            if config.muon_lr > 0 and parameter.dim() > 1 and ".layers." in name:
                by_shape.setdefault(parameter.shape, []).append(parameter)
                continue
            rate, decay = rates.get(name), config.weight_decay if parameter.dim() > 1 else 0.0
            alike.setdefault((config.lr if rate is None else rate, decay), []).append(parameter)
        self.adamw = [
            Group(some, lr, decay, {"mean": self._zeros(some), "square": self._zeros(some)})
            for (lr, decay), some in alike.items()
        ]
        decay = config.weight_decay if config.muon_decay is None else config.muon_decay
        self.muon = [Group(some, config.muon_lr, decay, {"mean": self._zeros(some)}) for some in by_shape.values()]

    def clip(self) -> Tensor:
        """Clip the summed gradients to the norm `grad_clip` (0 = no clipping); return the norm before clipping.

        Wait for the gradient reduction first. Raises PeerLost.
        """
        self.sharding.wait_reduced()
        grads = self._grads(self.names)
        norm = self.sharding.norm(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
        if self.config.grad_clip:
            torch._foreach_mul_(grads, torch.clamp(self.config.grad_clip / (norm + 1e-6), max=1.0))
        return norm

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update the parameters with `scale` times the peak learning rates. Raises PeerLost."""
        self.updates += 1
        for group in self.adamw:
            self._adamw(group, group.lr * scale)
        for group in self.muon:
            self._muon(group, group.lr * scale)
        self.sharding.all_gather_updates()

    def _adamw(self, group: Group, lr: float) -> None:
        """Update by AdamW with PyTorch's fused kernel, called directly to avoid torch.optim (see the class)."""
        first, second = self.config.betas
        parameters, grads = self._parts(group.parameters), self._grads(group.parameters)
        count = torch.full((), float(self.updates), device=parameters[0].device)
        torch._fused_adamw_(
            parameters,
            grads,
            group.state["mean"],
            group.state["square"],
            [],
            [count] * len(grads),
            lr=lr,
            beta1=first,
            beta2=second,
            weight_decay=group.decay,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )

    def _muon(self, group: Group, lr: float) -> None:
        """Update by Muon, orthogonalizing matrices of equal shape as one stack.

        The iteration runs in the dtype of activations, because the result is approximate anyway.
        """
        rows, columns = group.parameters[0].shape
        parameters, grads, mean = self._parts(group.parameters), self._grads(group.parameters), group.state["mean"]
        torch._foreach_lerp_(mean, grads, 1 - MUON_MOMENTUM)
        stack = torch.stack(torch._foreach_lerp(grads, mean, MUON_MOMENTUM)).to(self.dtype)  # Nesterov
        if self.sharding.size == 1:
            updates = orthogonalised(stack).float()
        else:
            made = orthogonalised(self.sharding.gather_matrices(stack, rows))
            updates = self.sharding.scatter_matrices(made, len(stack), stack.shape[1]).float()
        torch._foreach_mul_(parameters, 1 - lr * group.decay)
        torch._foreach_add_(parameters, list(updates.unbind()), alpha=-lr * max(1, rows / columns) ** 0.5)

    def zero_grad(self) -> None:
        for parameter in self.names:
            parameter.grad = None
        self.sharding.clear()

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as `<state name>:<parameter name>`, and the number of updates as `updates`."""
        return {"updates": torch.tensor(self.updates)} | {
            f"{what}:{self.names[parameter]}": value
            for group in (*self.adamw, *self.muon)
            for what, values in group.state.items()
            for parameter, value in zip(group.parameters, values, strict=True)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `tensors()`."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
        self.updates = int(tensors["updates"])

    def _parts(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        return [self.sharding.local_rows(parameter) for parameter in parameters]

    def _grads(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        found = (self.sharding.local_grad(parameter) for parameter in parameters)
        return [one for one in found if one is not None]

    def _zeros(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        return [torch.zeros_like(part) for part in self._parts(parameters)]
