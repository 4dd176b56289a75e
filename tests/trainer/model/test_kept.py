"""The memory estimate of compiled blocks, held against what the compiler's own partition of a block keeps."""

from dataclasses import replace

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition

from trainer import memory
from trainer.model import attention
from trainer.model.decoder import Decoder
from trainer.recipes import PROFILES

pytestmark = pytest.mark.slow


def kept_bytes(block: torch.nn.Module, *given) -> int:
    """Return the bytes that a compiled block keeps of its input and of what it computes, for the way back."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    kept = {}

    def forward(graph, inputs):
        (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
        tensors = [one.meta["val"] for one in outputs[1:] if isinstance(one.meta.get("val"), torch.Tensor)]
        parameters = {tuple(one.shape[::step]) for one in block.parameters() for step in (1, -1)}
        for one in tensors:
            if tuple(one.shape) not in parameters:
                kept[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table(),
    )  # fmt: skip
    torch.compile(block, backend=backend, dynamic=False)(*given)
    return sum(kept.values())


@pytest.mark.parametrize("profile", ["runpod_1b", "d20"])
@pytest.mark.parametrize("sparing", [{}, {"recompute": True, "keep_products": True}], ids=str)
def test_the_estimate_counts_what_a_compiler_keeps_of_each_block(profile, sparing, monkeypatch):
    monkeypatch.setattr(attention, "SQUARES", 0)  # by PyTorch's kernel, as on a GPU
    config = replace(PROFILES[profile]().phases["base"], micro_rows=1, sequence_len=192, compile="always", **sparing)
    model = Decoder(replace(config.model, num_hidden_layers=1), torch.bfloat16)
    model.blocks[0].keeps_products = bool(sparing)
    x = torch.randn(1, config.sequence_len, config.model.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    at = model.positions(torch.arange(config.sequence_len)[None], None, is_causal=True)
    found = kept_bytes(model.blocks[0], x, at, None, 0)

    def told(layers: int) -> int:
        shape = replace(config.model, num_hidden_layers=layers)
        return memory.estimate(replace(config, model=shape)).activations

    assert told(9) - told(8) == pytest.approx(found, rel=0.05)
