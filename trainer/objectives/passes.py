"""A batch, cut into the passes of a step: what each of them reads lies on the device before the first one begins.

In: named arrays of all rows of this process. Out: tensors for each pass; beside what the batch has, `counted`, the
places of the targets that count in its flattened rows, and on GPUs `bounds`, where documents begin and the last one
ends. Both are known here, so that nothing has to ask the GPU for them, and wait until it has come to that.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trainer.model.attention import has_varlen
from trainer.model.decoder import IGNORED, Decoder
from trainer.objectives import Batch

BOUNDS_BY = 64  # documents: their number is filled up with empty ones, so that passes have few shapes


def passes(batch: Batch, micro_rows: int, model: Decoder) -> list[dict[str, Tensor]]:
    """Return the inputs of each pass of at most `micro_rows` rows, on the device of the model.

    From a CPU's memory that a GPU reads by itself (pinned): the copies are begun, and nobody waits for them.
    """
    device, found = model.head.device, list[dict[str, Tensor]]()
    by_bounds = "documents" in batch and has_varlen(device, model.compute_dtype, model.config.head_dim)
    whole = {name: sent(one, device) for name, one in batch.items()}
    for start in range(0, len(batch["ids"]), micro_rows):
        rows = slice(start, start + micro_rows)
        part = {name: one[rows] for name, one in whole.items()}
        part["counted"] = sent(np.flatnonzero(batch["targets"][rows].ravel() != IGNORED), device)
        if by_bounds:
            part["bounds"] = sent(bounds(batch["documents"][rows]), device)
        found.append(part)
    return found


def evenly(rows: int, most: int) -> int:
    """Return the number of rows of a pass, at most so many: all passes but the last have as many, that few less."""
    return -(-rows // -(-rows // most))


def bounds(documents: np.ndarray) -> np.ndarray:
    """Return int32 (N + 1,): where each document begins in the flattened rows (B, T), then their end, repeated.

    No document goes on from one row into the next.
    """
    begins = np.ones(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = np.flatnonzero(begins.ravel())
    size = len(starts) + -len(starts) % BOUNDS_BY + 1
    return np.pad(starts, (0, size - len(starts)), constant_values=documents.size).astype(np.int32)


def seen_len(documents: np.ndarray) -> int:
    """Return the mean length over all tokens of a token's document, from which the cost of attention follows."""
    sizes = np.diff(bounds(documents)).astype(np.int64)
    return round(int((sizes * sizes).sum()) / documents.size)


def sent(array: np.ndarray, device: torch.device) -> Tensor:
    one = torch.from_numpy(np.ascontiguousarray(array))
    return one.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else one


def counted_in(batch: Mapping[str, Tensor]) -> Tensor:
    """Return (N,): where in the flattened rows of a pass the targets stand that count."""
    if "counted" in batch:
        return batch["counted"]
    return (batch["targets"].flatten() != IGNORED).nonzero().squeeze(1)
