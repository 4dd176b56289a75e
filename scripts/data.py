"""Data by hand. What these do stands in `shards.py`."""

from scripts.program import command


@command(
    "scripts.shards",
    world="",
    help={
        "mode": "smoke (a small sample), prod (everything, until interrupted) or split (OUT/train and OUT/val)",
        "source": "pydocs, fineweb, stdin (lines), stdin.jsonl, a path or an address of .txt, .jsonl, .parquet",
        "dataset": "fineweb: id of the data set on the hub",
        "config": "fineweb: configuration of the data set",
        "split": "fineweb: split of the data set",
        "revision": "fineweb: branch, tag or commit",
        "packages": "pydocs: installed packages to read too, comma-separated",
        "take": "stop after this many documents",
        "lines-per-shard": "documents per shard (SHARD_LINES, else 250000)",
        "val-ratio": "share held out in OUT/val, the rest in OUT/train (split: 0.01)",
        "validation": "hold out the documents of this source instead",
        "seed": "of the held-out choice",
        "min-score": "leave out documents whose score, or else language_score, is lower",
        "language": "leave out documents in any other language",
        "dedup": "exact: leave out documents that were there before",
        "format": "txt, jsonl or parquet",
        "gzip": "the same as --compression gzip",
        "compression": "gzip or zstd",
        "workers": "processes that read (0: as many as processors); changes no byte of the result",
        "reuse-shards": "leave finished shards in OUT as they are",
        "engine": "ray or slurm: spread the source over WORLD tasks of a cluster, then merge; Ctrl-C cancels them",
        "rank": "which of WORLD machines this is, from 0; each reads its share of the source's files",
        "world": "how many machines read the source; --merge OUT when all have",
        "out": "folder for the shards and manifest.json",
        "report": "write report.html about this folder of shards into it, and do nothing else",
        "verify": "check this folder of shards against its manifest, and do nothing else",
        "merge": "make the shares of all ranks in this folder one set of shards, and do nothing else",
        "json": "one JSON document on stdout",
    },
)
def shard(
    c,
    mode="smoke",
    source="",
    dataset="HuggingFaceFW/fineweb",
    config="sample-10BT",
    split="train",
    revision="main",
    packages="",
    take: int | None = None,
    lines_per_shard: int | None = None,
    val_ratio: float | None = None,
    validation="",
    seed=1337,
    min_score: float | None = None,
    language="",
    dedup="",
    format="txt",
    gzip=False,
    compression="",
    workers=0,
    reuse_shards=False,
    engine="",
    rank=0,
    world=1,
    out="",
    report="",
    verify="",
    merge="",
    json=False,
):
    """Documents into text shards with a manifest: one document per line. Goes on where it was stopped."""


@command(
    "scripts.shards",
    world="",
    help={
        "text": "folder of text shards, as `inv shard` writes it (default: the store's)",
        "vocab-size": "ids, the 256 bytes and nine chat specials included",
        "out": "folder for tokenizer.json and its companions",
        "json": "one JSON document on stdout",
    },
)
def tokenizer(c, text="", vocab_size=4096, out="", json=False):
    """A byte-level BPE tokenizer from text shards."""
