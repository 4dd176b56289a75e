"""Choice of the next token from logits: greedy, or sampled with temperature and top-k."""

import torch
from torch import Tensor


def sample_token(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator | None) -> Tensor:
    """Return one token id (B,) per row of fp32 logits (B, V); temperature 0 is greedy, top_k 0 disables the limit."""
    if temperature <= 0:
        return logits.argmax(dim=-1)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator).squeeze(1)
