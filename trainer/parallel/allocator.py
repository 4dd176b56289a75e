"""The way in which PyTorch takes a GPU's memory: said before PyTorch is imported. No torch here."""

import os

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_segments_grow() -> None:
    """Have PyTorch enlarge the pieces of a GPU's memory that it has, unless somebody has said how it takes them.

    Rows of many lengths leave holes that a larger one does not fit into, else.
    """
    if not set(SETTINGS) & os.environ.keys():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
