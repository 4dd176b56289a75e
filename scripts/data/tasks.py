"""Data by hand. What these do stands in `shard.py`."""

from scripts.cli.command import command


@command(
    "scripts.data.shard",
    "scripts.data.flags:ShardFlags",
    world="",
    env=True,
    example="inv shard --mode smoke --split train --take 1000",
)
def shard(c, spec):
    """Write FineWeb, or other text, as shards with a manifest.

    A shard has one document per line. Run it again to continue after an interruption.
    """


@command(
    "scripts.data.tokenizer_train",
    "scripts.data.flags:TokenizerFlags",
    name="train",
    default=True,
    world="",
    env=True,
    example="inv tokenizer --vocab-size 4096 --out var/tokenizer",
)
def tokenizer(c, spec):
    """Train a byte-level BPE tokenizer on text shards.

    A tokenizer of the same text and settings is reused.
    """


@command(
    "scripts.data.tokenizer_eval",
    "scripts.data.flags:TokenizerEvalFlags",
    name="eval",
    world="",
    env=True,
    example="inv tokenizer.eval --tokenizer var/tokenizer",
)
def tokenizer_eval(c, spec):
    """Measure how few tokens a tokenizer makes of text.

    The text is prose, code, numbers, other scripts and held-out text; GPT-2 and GPT-4 are shown for comparison.
    """
