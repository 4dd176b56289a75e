"""The states of the random generators of a process, kept in checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """Return the random generator states of this process: `torch`, and `cuda` with a GPU."""
    states = {"torch": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
