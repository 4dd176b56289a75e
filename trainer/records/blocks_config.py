"""Settings of a model with block-wise decoding, for training and for decoding. Light to import: no torch here."""

from dataclasses import dataclass

from data.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """Block diffusion: the tokens of a block are predicted together, block after block.

    Source: Wu et al., Fast-dLLM v2, arXiv 2509.26328; Arriola et al., Block Diffusion, arXiv 2503.09573.
    """

    block_size: int = 16
    """Tokens per block; attention is bidirectional within a block and causal across blocks."""
    sub_block_size: int = 8
    """Decoding: tokens per sub-block; a block is filled from left to right in sub-blocks. Divides `block_size`."""
    threshold: float = 0.9
    """Decoding: tokens above this probability are accepted together; 1 = a single token per forward pass."""
    mask_id: int = -1
    """Id of the mask token; -1 = the first id after the tokenizer's ids."""

    def __post_init__(self) -> None:
        if self.block_size < 2:
            raise ConfigError(f"block_size is {self.block_size}; it must be at least 2 tokens")
        if self.sub_block_size < 1 or self.block_size % self.sub_block_size:
            raise ConfigError(f"sub_block_size is {self.sub_block_size}; it must divide block_size {self.block_size}")
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if self.mask_id < -1:
            raise ConfigError(f"mask_id is {self.mask_id}; it must be a token id, or -1")
