"""No gradient of a frozen weight is computed, and the other gradients do not change."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.conftest import TINY
from trainer.config import OptimizerConfig
from trainer.model.decoder import Decoder, RMSNorm, initialize
from trainer.model.losses import Shape, SummedCrossEntropy
from trainer.model.token_losses import Teacher, sliced_kl, token_logprobs
from trainer.optim import Optimizer

TOKENS, WIDTH, IDS = 6, 8, 13


class Made(TorchDispatchMode):
    """The shapes of all tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set[tuple[int, ...]]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.shapes |= {tuple(one.shape) for one in tree_leaves(found) if isinstance(one, Tensor)}
        return found


TEACHER = Teacher(torch.ones(TOKENS, WIDTH + 1), torch.linspace(-1, 1, IDS * (WIDTH + 1)).view(IDS, WIDTH + 1))
LOSSES = {
    "cross entropy": lambda *given: SummedCrossEntropy.apply(*given, Shape()),
    "log-probabilities": lambda *given: token_logprobs(*given, Shape()).sum(),
    "capped log-probabilities": lambda *given: token_logprobs(*given, Shape(softcap=3.0)).sum(),
    "distillation": lambda *given: sliced_kl(*given, TEACHER, torch.ones(2), 2.0)[0],
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_frozen_head_is_not_computed(name):
    torch.manual_seed(1)
    start, head, targets = torch.randn(TOKENS, WIDTH), torch.randn(IDS, WIDTH), torch.arange(TOKENS)
    grads = {}
    for learns in (True, False):
        hidden, weight = start.clone().requires_grad_(), head.clone().requires_grad_(learns)
        with Made() as made:
            LOSSES[name](hidden, weight, targets).backward()
        grads[learns] = hidden.grad
        assert (weight.grad is not None) == learns == ((IDS, WIDTH) in made.shapes), made.shapes
    assert torch.equal(grads[True], grads[False])


def test_the_gradient_of_a_frozen_gain_is_not_computed():
    torch.manual_seed(1)
    start, grads = torch.randn(2, TOKENS, WIDTH), {}
    for learns in (True, False):
        norm, x = RMSNorm(WIDTH, 1e-6).requires_grad_(learns), start.clone().requires_grad_()
        with Made() as made:
            norm(x).square().sum().backward()
        grads[learns] = x.grad
        assert (norm.weight.grad is not None) == learns == ((WIDTH,) in made.shapes)
    assert torch.equal(grads[True], grads[False])


def test_optimizer_and_checkpoints_hold_only_the_parameters_that_learn():
    model = Decoder(TINY)
    initialize(model, 1)
    assert model.learning_state().keys() == model.state_dict().keys()
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_()
    before = model.model.layers[0].mlp.up_proj.weight.clone()
    optimizer = Optimizer(model, OptimizerConfig(lr=0.1))
    model.loss(torch.arange(8)[None], torch.arange(8)[None]).backward()
    optimizer.clip()
    optimizer.step(1.0)
    assert [*model.learning_state()] == ["model.norm.weight"]
    assert optimizer.tensors().keys() == {"updates", "mean:model.norm.weight", "square:model.norm.weight"}
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, before)
    assert not torch.equal(model.model.norm.weight, torch.ones(TINY.hidden_size))
