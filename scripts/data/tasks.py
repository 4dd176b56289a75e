"""Data by hand. What these do stands in `shard.py`."""

from scripts.cli.invoke_patch import command


@command(
    "scripts.data.shard",
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
        "workers": "processes (0: as many as processors); changes no byte of the result",
        "reuse-shards": "leave finished shards in OUT as they are",
        "engine": "ray or slurm: spread the source over WORLD tasks of a cluster, then merge; Ctrl-C cancels them",
        "rank": "which of WORLD machines this is, from 0; each reads its share of the source's files",
        "world": "how many machines read the source; --merge OUT when all have",
        "out": "folder for the shards and manifest.json",
        "report": "write report.html about this folder of shards into it, and do nothing else",
        "verify": "check this folder of shards against its manifest, and do nothing else",
        "partial": "--verify: whole shards are enough where making them was interrupted",
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
    partial=False,
    merge="",
    json=False,
):
    """Write documents as text shards with a manifest.

    A shard has one document per line. Run it again to go on where it was stopped.
    """


@command(
    "scripts.data.tokenizer",
    world="",
    name="train",
    default=True,
    help={
        "source": "pydocs, fineweb, or a path: its text in the store, which is made when it is missing",
        "text": "folder of text shards instead, as `inv shard` writes it",
        "partial": "take the whole shards of a --text whose making was interrupted",
        "vocab-size": "ids, the 256 bytes and nine chat specials included (4096)",
        "retrain": "make it again, though it is there",
        "tokenizer-json": "take this published tokenizer as it is; its last ids must be the nine chat specials",
        "out": "folder for tokenizer.json, its companions, training.yaml and training.toml",
        "json": "one JSON document on stdout",
    },
)
def tokenizer(
    c, source="", text="", partial=False, vocab_size: int | None = None, retrain=False, tokenizer_json="", out="",
    json=False,
):  # fmt: skip
    """Train a byte-level BPE tokenizer on text shards.

    A tokenizer of the same text and settings is reused.
    """


@command(
    "scripts.data.tokenizer",
    world="",
    name="eval",
    help={
        "tokenizer": "folder of a tokenizer (default: var/tokenizer, else the store's)",
        "source": "whose held-out text",
        "text": "folder of text shards with a held-out part instead",
        "partial": "take the whole shards of a --text whose making was interrupted",
        "peers": "folder of GPT-2's and GPT-4's .tiktoken files (default: tiktoken's own cache)",
        "download": "fetch the files of GPT-2 and GPT-4 into that folder when they are not there",
        "json": "one JSON document on stdout",
    },
)
def tokenizer_eval(c, tokenizer="", source="", text="", partial=False, peers="", download=False, json=False):
    """Measure how few tokens a tokenizer makes of text.

    The text is prose, code, numbers, other scripts and held-out text; GPT-2 and GPT-4 stand beside it.
    """


WORKSPACE = "folder of datasets, artifacts, runs, cache and hf_cache (default var/workspace)"


@command(
    "scripts.data.pipeline",
    world="",
    help={
        "input": "the corpus: a path or an address of .txt, .jsonl, .parquet, or fineweb, pydocs",
        "experiment": "names the folders (RUN_EXPERIMENT, else runpod-2b)",
        "workspace": WORKSPACE,
        "train-shard-lines": "lines per shard (SHARD_LINES, else 250000)",
        "validation": "hold out this corpus instead of a share of the other",
        "reuse-shards": "leave finished shards as they are, whatever they were made of (so does RUN_SHARD=0)",
        "tokenizer-json": "take this published tokenizer; its last ids must be the nine chat specials",
        "vocab-size": "ids of the tokenizer and the model instead of the recipe's",
        "profile": "recipe of model and training, or a .yaml file (RUN_CONFIG, else runpod_1b)",
        "config": "the same as --profile",
        "steps": "optimizer steps instead of the recipe's; the schedule is rescaled to them",
        "dry-run": "only say what would be done",
        "json": "one JSON document on stdout",
    },
)
def pipeline(
    c,
    input="",
    experiment="",
    workspace="",
    train_shard_lines: int | None = None,
    validation="",
    reuse_shards=False,
    tokenizer_json="",
    vocab_size: int | None = None,
    profile="",
    config="",
    steps: int | None = None,
    dry_run=False,
    json=False,
):
    """Make a trained model of a corpus here, stage by stage.

    The stages are folders, shards, tokenizer, configuration and training.
    """


@command(
    "scripts.data.workspace",
    world="",
    help={
        "workspace": WORKSPACE,
        "experiment": "only the folders of this one",
        "provider": "local: folders of this machine are all that can be shown",
        "json": "one JSON document on stdout",
    },
)
def tree(c, workspace="", experiment="", provider="", json=False):
    """Show the folders of `inv pipeline`, and what is in them."""
