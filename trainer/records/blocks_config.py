"""The settings of a model that decodes in blocks, for training and for decoding. Light to import: no torch here."""

from dataclasses import dataclass

from data.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """Block diffusion: tokens of a block are predicted together, blocks one after another.

    Source: Wu et al., Fast-dLLM v2, arXiv 2509.26328; Arriola et al., Block Diffusion, arXiv 2503.09573.
    """

    block_size: int = 16
    """Tokens of a block; attention goes both ways inside of it and only backwards across blocks."""
    sub_block_size: int = 8
    """Decoding: a block is filled from left to right in pieces of so many tokens; divides `block_size`."""
    threshold: float = 0.9
    """Decoding: tokens that are more probable than this are taken together; 1 = one token in each forward pass."""
    mask_id: int = -1
    """The id that stands for a token that is not known yet; -1 = the first one behind those of the tokenizer."""

    def __post_init__(self) -> None:
        if self.block_size < 2:
            raise ConfigError(f"block_size is {self.block_size}; a block has at least 2 tokens")
        if self.sub_block_size < 1 or self.block_size % self.sub_block_size:
            raise ConfigError(
                f"sub_block_size is {self.sub_block_size}; it must divide block_size, which is {self.block_size}"
            )
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if self.mask_id < -1:
            raise ConfigError(f"mask_id is {self.mask_id}; it must be an id, or -1")
