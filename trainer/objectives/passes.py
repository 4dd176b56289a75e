"""Micro-batches of a step, copied to the device before the first pass begins.

`passes` splits the arrays of this process into tensors per pass and adds `counted`, the indices of counted targets in
the flattened rows, and on GPUs `bounds`, the document offsets. Computing both on the CPU avoids a synchronization with
the GPU.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trainer.model.attention import has_varlen
from trainer.model.decoder import IGNORED, Decoder
from trainer.objectives import Batch

BOUNDS_BY = 64  # pad the number of documents to a multiple with empty documents: fewer tensor shapes


def passes(batch: Batch, micro_rows: int, model: Decoder) -> list[dict[str, Tensor]]:
    """Return the inputs of each pass of at most `micro_rows` rows, on the device of the model.

    Copies to a GPU run asynchronously from pinned CPU memory.
    """
    device, found = model.head.device, list[dict[str, Tensor]]()
    by_bounds = "documents" in batch and has_varlen(device, model.compute_dtype, model.config.head_dim)
    whole = {name: to_device(one, device) for name, one in batch.items()}
    for start in range(0, len(batch["ids"]), micro_rows):
        rows = slice(start, start + micro_rows)
        part = {name: one[rows] for name, one in whole.items()}
        part["counted"] = to_device(np.flatnonzero(batch["targets"][rows].ravel() != IGNORED), device)
        if by_bounds:
            part["bounds"] = to_device(bounds(batch["documents"][rows]), device)
        found.append(part)
    return found


def evenly(rows: int, most: int) -> int:
    """Return the rows per pass, at most `most`, for passes of nearly equal size; the last pass may be smaller."""
    return -(-rows // -(-rows // most))


def bounds(documents: np.ndarray) -> np.ndarray:
    """Return int32 (N + 1,): start offsets of the documents in the flattened rows (B, T), then the end as padding.

    A document never continues in the next row.
    """
    begins = np.ones(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = np.flatnonzero(begins.ravel())
    size = len(starts) + -len(starts) % BOUNDS_BY + 1
    return np.pad(starts, (0, size - len(starts)), constant_values=documents.size).astype(np.int32)


def seen_len(documents: np.ndarray) -> int:
    """Return the mean document length over all tokens, the effective row length for the cost of attention."""
    sizes = np.diff(bounds(documents)).astype(np.int64)
    return round(int((sizes * sizes).sum()) / documents.size)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    one = torch.from_numpy(np.ascontiguousarray(array))
    return one.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else one


def target_indices(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the indices (N,) of counted targets in the flattened rows of a pass."""
    if "counted" in batch:
        return batch["counted"]
    return (batch["targets"].flatten() != IGNORED).nonzero().squeeze(1)


def tokens_in(batch: Batch) -> int:
    """Return the number of tokens in the rows, excluding padding after the last target of each row."""
    counted = batch["targets"] != IGNORED
    lengths = counted.shape[1] - counted[:, ::-1].argmax(axis=1)
    return int(lengths[counted.any(axis=1)].sum())


def targets_in(batch: Batch) -> int:
    """Return the number of targets in the loss."""
    return int((batch["targets"] != IGNORED).sum())


def padding_of(name: str) -> int:
    """Return the padding value of a batch array: IGNORED for `targets`, else 0."""
    return IGNORED if name == "targets" else 0
