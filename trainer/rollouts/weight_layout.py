"""Weight layout that the CPU's matrix library reads fastest, kept while a model generates answers.

`optimized_layout` takes a model whose weights do not change meanwhile. Without this layout, every product first
rearranges the matrices, at up to a quarter of the product's time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Decoder, Linear

Product = Callable[[Tensor], Tensor]


@contextmanager
def optimized_layout(model: Decoder, rows: int) -> Iterator[Product]:
    """Convert a model's matrices to the layout for products with `rows` rows; yield a function hidden states -> logits.

    Leaving the context restores the normal layout. Without MKL-DNN, the matrices stay unchanged.
    """
    head = model.head.detach().to(model.compute_dtype)
    if not torch.backends.mkldnn.is_available():
        yield lambda hidden: F.linear(hidden, head)
        return

    def anew(weight: Tensor) -> Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(model.compute_dtype), rows)

    matrices = [one for one in model.model.modules() if isinstance(one, Linear)]
    whole = anew(head)
    try:
        for one in matrices:
            one.laid_out = anew(one.weight)
        yield lambda hidden: torch.ops.mkldnn._linear_pointwise(hidden, whole, None, "none", [], "")
    finally:
        for one in matrices:
            one.laid_out = None
