"""A full-precision model converted to the 1.58-bit architecture, before any training."""

from dataclasses import replace

import pytest
import torch

from packs.bits.trainer.conversion import converted, read_sizes
from tests.trainer.conftest import TINY
from trainer.model.decoder import Decoder, initialize


@pytest.fixture
def scaled_model():
    """Return a model with non-zero layers of varied scale."""
    model = Decoder(TINY)
    initialize(model, 3)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                one.normal_(std=4 * one.shape[1] ** -0.5, generator=torch.Generator().manual_seed(4))
            elif name.endswith("up_proj.weight"):
                one.mul_(0.2)
    return model


def test_new_norms_keep_the_scale_of_the_inputs_of_matrices(scaled_model):
    shape = replace(TINY, sub_norm=True)
    model = converted(scaled_model, shape, torch.float32)
    weights = model.state_dict()
    assert all(torch.equal(weights[name], one) for name, one in scaled_model.state_dict().items())
    ids = torch.randint(TINY.vocab_size, (4, 64), generator=torch.Generator().manual_seed(5))
    found = {}
    for name, block in (("before", scaled_model), ("model", model)):
        last = block.get_submodule("model.layers.1.mlp.down_proj")
        hook = last.register_forward_pre_hook(lambda _, given, name=name: found.update({name: given[0].detach()}))
        with torch.no_grad():
            found[f"{name} says"] = block(ids)
        hook.remove()
    sizes = {name: float(found[name].square().mean(dim=-1).sqrt().mean()) for name in ("before", "model")}
    assert sizes["before"] < 0.5  # A gain of one would give one.
    assert sizes["model"] == pytest.approx(sizes["before"], rel=0.15)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "sub_norm" in name:
                one.fill_(1.0)
        ones = model(ids)
    near, far = (float((one - found["before says"]).square().mean()) for one in (found["model says"], ones))
    assert near < far / 4


def test_unmeasurable_input_never_disables_a_norm(scaled_model):
    with torch.no_grad():
        scaled_model.get_parameter("model.layers.0.self_attn.v_proj.weight").zero_()
        scaled_model.get_parameter("model.layers.1.mlp.up_proj.weight")[0, 0] = float("nan")
    sizes = read_sizes(scaled_model)
    assert sizes["model.layers.0.self_attn.o_proj"] == 1.0 and sizes["model.layers.1.mlp.down_proj"] == 1.0
    assert 0 < sizes["model.layers.0.mlp.down_proj"] < 1
    shape = replace(TINY, sub_norm=True)
    once = converted(scaled_model, shape, torch.float32)
    twice = converted(once, shape, torch.float32)  # Existing norms keep their gains.
    gains = [one.get_parameter("model.layers.0.mlp.ffn_sub_norm.weight")[0].item() for one in (once, twice)]
    assert gains == pytest.approx([sizes["model.layers.0.mlp.down_proj"]] * 2)
