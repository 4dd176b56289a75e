"""The layout of weights that the matrix library of a processor reads fastest, kept while a model generates answers.

In: a model whose weights stay as they are meanwhile. Out: the same model, a little faster; its matrices are otherwise
rearranged in every product, which is up to a quarter of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Decoder, Linear

Product = Callable[[Tensor], Tensor]


@contextmanager
def laid_out(model: Decoder, rows: int) -> Iterator[Product]:
    """Have a model's matrices lie as products with `rows` rows read them; yield what makes logits of hidden states."""
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
