"""AdamW, Muon and the schedule that both follow.

In: named parameters, an `OptimizerConfig`, the step. Out: changed parameters; state as named tensors.
Sources: Loshchilov and Hutter, arXiv 1711.05101 (AdamW); Jordan, "Muon: an optimizer for hidden layers" (2024).
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from trainer.config import OptimizerConfig, ScheduleConfig
from trainer.model import Decoder

MUON_MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def learning_rate_scale(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """The share of the peak learning rate at `step` (from 0) of `steps`."""
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    begin = steps * (1 - schedule.decay)
    if step < begin or schedule.decay == 0:
        return warmup
    progress = (step - begin) / (steps - begin)
    left = 0.5 * (1 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1 - progress
    return warmup * (schedule.final + (1 - schedule.final) * left)


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: Newton-Schulz on a stack (N, rows, columns)."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT.contiguous() if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; for matrices. Equal shapes are done as one stack."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype) -> None:
        """dtype: of the orthogonalisation, which is rough in any case."""
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    stacks.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in stacks.items():
                self._step_stack(parameters, group["lr"] * max(1, shape[0] / shape[1]) ** 0.5, group)

    def _step_stack(self, parameters: list[Tensor], lr: float, group: dict) -> None:
        grads = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        moments = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(moments, grads, 1 - MUON_MOMENTUM)
        updates = orthogonalise(torch.stack(torch._foreach_lerp(grads, moments, MUON_MOMENTUM)).to(self.dtype)).float()
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(updates.unbind()), alpha=-lr)


class Optimizer:
    """What changes the parameters of a model: AdamW, with Muon for the matrices inside blocks when it has a rate."""

    def __init__(self, model: Decoder, config: OptimizerConfig) -> None:
        self.config = config
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        gains = [p for p in self.names if p.dim() < 2]
        inner = [p for p, name in self.names.items() if p.dim() == 2 and ".layers." in name and config.muon_lr > 0]
        taken = {id(p) for p in (*gains, *inner)}
        rest = [p for p in self.names if id(p) not in taken]
        decay = config.weight_decay
        groups = [{"params": rest, "weight_decay": decay}, {"params": gains, "weight_decay": 0.0}]
        adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [(adamw, config.lr)]
        if inner:
            self.parts.append((Muon(inner, config.muon_lr, decay, model.compute_dtype), config.muon_lr))

    def clip(self) -> Tensor:
        """The norm of all gradients before they were cut to `grad_clip` (0 = not cut)."""
        limit = self.config.grad_clip or math.inf
        return nn.utils.clip_grad_norm_(list(self.names), limit)

    def step(self, scale: float) -> None:
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer, _ in self.parts:
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """All state, as `<what>:<parameter name>`."""
        return {
            f"{what}:{self.names[parameter]}": value
            for optimizer, _ in self.parts
            for parameter, state in optimizer.state.items()
            for what, value in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors()` gave."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            what, name = key.split(":", 1)
            by_name.setdefault(name, {})[what] = value
        for optimizer, _ in self.parts:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter] = by_name.get(self.names[parameter], {})
