"""Data by hand. What these do stands in `shards.py`."""

from scripts.program import command


@command(
    "scripts.shards",
    help={
        "mode": "smoke (a small sample) or prod (everything)",
        "source": "pydocs, fineweb, or a path of .txt, .jsonl, .parquet",
        "packages": "pydocs: installed packages to read too, comma-separated",
        "take": "stop after this many documents",
        "lines-per-shard": "documents per shard",
        "val-ratio": "share held out in OUT/val, the rest in OUT/train",
        "seed": "of the held-out choice",
        "out": "folder for the shards and manifest.json",
        "json": "one JSON document on stdout",
    },
)
def shard(
    c,
    mode="smoke",
    source="",
    packages="",
    take: int | None = None,
    lines_per_shard=250_000,
    val_ratio=0.0,
    seed=1337,
    out="",
    json=False,
):
    """Documents into text shards with a manifest: one document per line."""


@command(
    "scripts.shards",
    help={
        "text": "folder of text shards, as `inv shard` writes it (default: the store's)",
        "vocab-size": "ids, the 256 bytes and nine chat specials included",
        "out": "folder for tokenizer.json and its companions",
        "json": "one JSON document on stdout",
    },
)
def tokenizer(c, text="", vocab_size=4096, out="", json=False):
    """A byte-level BPE tokenizer from text shards."""
