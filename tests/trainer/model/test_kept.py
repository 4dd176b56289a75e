"""The memory estimate of a block, compared with the tensors kept by the compiler's partition and by autograd."""

from dataclasses import replace

import pytest
import torch

from trainer import memory
from trainer.model import attention
from trainer.model.decoder import Decoder
from trainer.recipes import PROFILES

pytestmark = pytest.mark.slow


def kept_bytes(block: torch.nn.Module, *given) -> int:
    """Return the bytes of inputs and activations that a compiled block keeps for the backward pass."""
    # These imports take seconds, in each worker if they stood at the top.
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    kept = {}

    def forward(graph, inputs):
        (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
        tensors = [one.meta["val"] for one in outputs[1:] if isinstance(one.meta.get("val"), torch.Tensor)]
        for one in tensors:
            if tuple(one.shape) not in of_matrices(block):
                kept[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch.compile(block, backend=backend, dynamic=False)(*given)
    return sum(kept.values())


def saved_bytes(block: torch.nn.Module, *given) -> int:
    """Return the bytes that autograd keeps for the same block."""
    kept = {}

    def pack(one: torch.Tensor) -> torch.Tensor:
        if tuple(one.shape) not in of_matrices(block):
            kept[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        block(*given)
    return sum(kept.values())


def of_matrices(block: torch.nn.Module) -> set[tuple[int, ...]]:
    """Return the shapes of the block's matrices and their transposes: copies of weights are counted elsewhere."""
    return {tuple(one.shape[::step]) for one in block.parameters() for step in (1, -1)}


@pytest.fixture
def block_of(monkeypatch):
    """Return a block of the config in bfloat16, and inputs."""
    monkeypatch.setattr(attention, "SQUARES", 0)  # With PyTorch's kernel, as on a GPU.

    def make(config):
        model = Decoder(replace(config.model, num_hidden_layers=1), torch.bfloat16)
        model.blocks[0].keeps_products = config.keep_products
        x = torch.randn(1, config.sequence_len, config.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        return model.blocks[0], x, model.positions(torch.arange(config.sequence_len)[None], None, is_causal=True)

    return make


def estimated_bytes(config) -> int:
    nine, eight = (
        memory.estimate(replace(config, model=replace(config.model, num_hidden_layers=layers))) for layers in (9, 8)
    )
    return nine.activations - eight.activations


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("profile", ["runpod_1b", "d20"])
@pytest.mark.parametrize("sparing", [{}, {"recompute": True, "keep_products": True}], ids=str)
def test_estimate_equals_the_activations_kept_by_a_compiled_block(profile, sparing, block_of):
    config = replace(PROFILES[profile]().phases["base"], micro_rows=1, sequence_len=192, compile="always", **sparing)
    block, x, at = block_of(config)
    assert estimated_bytes(config) == pytest.approx(kept_bytes(block, x, at, None, 0), rel=0.05)


@pytest.mark.parametrize("profile", ["runpod_1b", "d20"])
def test_estimate_equals_the_activations_kept_without_a_compiler(profile, block_of):
    config = replace(PROFILES[profile]().phases["base"], micro_rows=1, sequence_len=192, compile="never")
    block, x, at = block_of(config)
    assert estimated_bytes(config) == pytest.approx(saved_bytes(block, x, at, None, 0), rel=0.05)
