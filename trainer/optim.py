"""AdamW and Muon with a common learning rate schedule.

`Optimizer` updates the parameters of a model in place and exposes its state as named tensors. With several processes,
each process updates its rows of every parameter; for Muon the processes exchange rows so that each orthogonalizes some
whole matrices.
Sources: Loshchilov and Hutter, arXiv 1711.05101 (AdamW); Jordan, "Muon: an optimizer for hidden layers" (2024); Amsel
et al., arXiv 2505.16932 (Polar Express). `MuonConfig` names the sources of the variants.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import MuonConfig, OptimizerConfig, ScheduleConfig
from trainer.memory import MUON_AT_ONCE
from trainer.model import hooks
from trainer.model.decoder import Decoder
from trainer.parallel.fsdp import WHOLE, FsdpSharding

NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 5
POLAR_EXPRESS = (  # for singular values from 0.001; a polynomial is x -> a x + b x**3 + c x**5
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
SAFETY = 1.01  # rounding may make singular values larger than 1 by this factor
MUON_OF_2024 = MuonConfig()
SAFE_POLAR_EXPRESS = (
    *((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR_EXPRESS[:-1]),
    POLAR_EXPRESS[-1],
)


def learning_rate_scale(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the fraction of the peak learning rate at `step` (from 0) of `steps`."""
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    begin = max(steps * (1 - schedule.decay), min(schedule.warmup_steps, steps - 1))
    if step < begin or schedule.decay == 0:
        return warmup
    progress = (step - begin) / (steps - begin)
    left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1 - progress
    return warmup * (schedule.final + (1 - schedule.final) * left)


def momentum_at(muon: MuonConfig, step: int, scale: float) -> float:
    """Return the momentum of Muon at `step` (from 0), with `scale` times the peak learning rate."""
    if step < muon.momentum_steps:
        return muon.first_momentum + step / muon.momentum_steps * (muon.momentum - muon.first_momentum)
    return muon.last_momentum + min(scale, 1.0) * (muon.momentum - muon.last_momentum)


def orthogonalize(matrices: Tensor, coefficients: Sequence[tuple[float, float, float]] = NEWTON_SCHULZ) -> Tensor:
    """Return the approximate nearest (semi-)orthogonal matrices of a stack (N, rows, columns), by Newton-Schulz."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT.contiguous() if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in coefficients:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def orthogonalized(stack: Tensor, muon: MuonConfig = MUON_OF_2024) -> Tensor:
    """Return the update for a stack of whole matrices: `orthogonalize`, with the variants of `muon` for whole matrices.

    On a GPU, work in place and in chunks of MUON_AT_ONCE elements to bound memory.
    """
    if not stack.is_cuda:
        return _orthogonalized(stack, muon)
    for some in stack.split(max(1, MUON_AT_ONCE // max(1, stack[0].numel()))) if len(stack) else ():
        some.copy_(_orthogonalized(some, muon))
    return stack


def _orthogonalized(stack: Tensor, muon: MuonConfig) -> Tensor:
    if muon.equal_rows and len(stack):
        rows = stack.float().norm(dim=-1, keepdim=True)  # (N, rows, 1)
        stack = stack * (rows.square().mean(dim=-2, keepdim=True).sqrt() / rows.clamp(min=1e-6)).to(stack.dtype)
    x = orthogonalize(stack, SAFE_POLAR_EXPRESS if muon.polar else NEWTON_SCHULZ)
    if muon.full_norm and len(x):
        norm = x.float().norm(dim=(-2, -1), keepdim=True).clamp(min=1e-6)
        x = x * (min(x.shape[-2:]) ** 0.5 / norm).to(x.dtype)
    return x


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
        self.variant = config.muon or MUON_OF_2024
        rates = {"model.embed_tokens.weight": config.embed_lr, "lm_head.weight": config.head_lr}
        for one in hooks.feature_hooks(model.config):
            rates |= one.rates(model, config)
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
        for group in self.muon if self.variant.neurons else ():
            group.state["neurons"] = [one[:, :1].contiguous() for one in self._zeros(group.parameters)]

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
    def step(self, scale: float, progress: float = 0.0) -> None:
        """Update the parameters with `scale` times the peak learning rates. Raises PeerLost.

        progress: share of the steps before this update, for a decay that falls over the steps.
        """
        self.updates += 1
        for group in self.adamw:
            self._adamw(group, group.lr * scale)
        for group in self.muon:
            self._muon(group, group.lr * scale, momentum_at(self.variant, self.updates - 1, scale), progress)
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

    def _muon(self, group: Group, lr: float, momentum: float, progress: float) -> None:
        """Update by Muon, orthogonalizing matrices of equal shape as one stack.

        The iteration runs in the dtype of activations, because the result is approximate anyway.
        """
        rows, columns = group.parameters[0].shape
        parameters, grads, mean = self._parts(group.parameters), self._grads(group.parameters), group.state["mean"]
        torch._foreach_lerp_(mean, grads, 1 - momentum)
        stack = torch.stack(torch._foreach_lerp(grads, mean, momentum)).to(self.dtype)  # Nesterov
        if self.sharding.size == 1:
            updates = orthogonalized(stack, self.variant).float()
        else:
            made = orthogonalized(self.sharding.gather_matrices(stack, rows), self.variant)
            updates = self.sharding.scatter_matrices(made, len(stack), stack.shape[1]).float()
        if self.variant.neurons:
            updates = self._equal_neurons(updates, group.state["neurons"])
        decay, faster = lr * group.decay, max(1, rows / columns) ** 0.5
        if self.variant.decay_to_zero:
            decay *= faster * 0.5 * (1 + math.cos(math.pi * progress))
        if self.variant.cautious:
            for one, update in zip(parameters, updates, strict=True):
                one.sub_(one * (one * update >= 0), alpha=decay)
        else:
            torch._foreach_mul_(parameters, 1 - decay)
        torch._foreach_add_(parameters, list(updates.unbind()), alpha=-lr * faster)

    def _equal_neurons(self, updates: Tensor, squares: list[Tensor]) -> Tensor:
        """Divide each row of updates (N, rows, columns) by its root mean square over the steps; keep the norms.

        squares: mean square of each row over the steps, (rows, 1) per matrix, changed in place.
        """
        torch._foreach_lerp_(squares, list(updates.square().mean(dim=-1, keepdim=True)), 1 - self.variant.neurons)
        made = updates * torch.stack(squares).clamp(min=1e-10).rsqrt()
        before, after = (self.sharding.norm(one.flatten(1).norm(dim=1)) for one in (updates, made))
        return made * (before / after.clamp(min=1e-10))[:, None, None]

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
