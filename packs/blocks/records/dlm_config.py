"""Configuration of the phase dlm, as a frozen record. Light to import: no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from data.errors import ConfigError
from trainer.config import PhaseConfig
from trainer.records.fields import newer
from trainer.records.model_config import BlocksConfig, ModelConfig

ROWS = 64  # vocabulary heights are multiples of 64; other heights multiply slowly


@dataclass(frozen=True, kw_only=True)
class DlmConfig(PhaseConfig):
    """Config of the phase dlm: the phase config with block settings."""

    blocks: BlocksConfig | None = newer(None)
    """Block settings for training and decoding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self._blocks.block_size
        if self.sequence_len % size:
            whole = self.fitting(self.sequence_len)
            near = f"set sequence_len to {whole}" if whole else "take smaller blocks"
            raise ConfigError(f"block_size {size} does not divide sequence_len {self.sequence_len}; {near}")

    @property
    def _blocks(self) -> BlocksConfig:
        if self.blocks is None:
            raise ConfigError(f"phase {self.phase} needs blocks")
        return self.blocks

    @property
    def can_pack(self) -> bool:
        """Return False: a row holds the blocks of a single conversation."""
        return False

    @property
    def views(self) -> int:
        """Return 3, the passes of each token through the model: clean, and in two masked views."""
        return 3

    @property
    def has_own_mask(self) -> bool:
        return True

    def fitting(self, sequence_len: int) -> int:
        """Return the largest multiple of the block size that is at most `sequence_len`."""
        return sequence_len - sequence_len % self._blocks.block_size

    def with_vocabulary(self, known: int) -> "DlmConfig":
        """Return a copy for a tokenizer of `known` ids, with a model that has room for the mask."""
        return replace(self, model=with_mask(self.model, self._blocks, known))

    def with_sizes(self, sizes: Mapping[str, int]) -> PhaseConfig:
        """Return a copy with the sizes BLOCK_SIZE, BATCH_SIZE, GRAD_ACCUM and TOKENS. Raises ConfigError."""
        config = self
        if size := sizes.get("block_size", 0):
            pieces = math.gcd(size, self._blocks.sub_block_size)
            config = replace(config, blocks=replace(self._blocks, block_size=size, sub_block_size=pieces))
        batch_size, grad_accum = sizes.get("batch_size", 0), sizes.get("grad_accum", 0)
        if batch_size or grad_accum:
            passes = grad_accum or max(1, config.rows // config.turns // config.micro_rows)
            micro_rows = batch_size or config.micro_rows
            rows = micro_rows * passes * config.turns  # a sequence holds `turns` conversations
            config = replace(config, micro_rows=micro_rows, rows=rows, fit=not batch_size)
        if tokens := sizes.get("tokens", 0):
            each = config.rows // config.turns * config.sequence_len
            return config.with_steps(math.ceil(tokens / each))
        return config


def with_mask(config: ModelConfig, blocks: BlocksConfig, known: int) -> ModelConfig:
    """Return the shape with room for the mask, which takes the first id after the `known` ids of the tokenizer.

    A model with spare rows keeps its size; otherwise the number of rows grows to the next multiple of 64.
    """
    if known < config.vocab_size:
        rows = config.vocab_size
    else:
        rows = known + 1
        rows += -rows % ROWS
    return replace(config, vocab_size=rows, blocks=replace(blocks, mask_id=known))
