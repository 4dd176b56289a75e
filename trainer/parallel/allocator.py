"""Settings of PyTorch's CUDA allocator, applied before importing PyTorch. No torch import."""

import os

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def enable_expandable_segments() -> None:
    """Enable expandable segments in PyTorch's CUDA allocator, unless the user configured the allocator.

    Without expandable segments, rows of many lengths fragment GPU memory.
    """
    if not set(SETTINGS) & os.environ.keys():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
