"""The flags of the commands about data, each declared once."""

from dataclasses import dataclass

from infra.flags import Typed, flag
from scripts.cli.flags import Output
from store import packs


@dataclass(frozen=True, kw_only=True)
class ShardFlags(Output, Typed):
    mode: str = flag(
        "smoke",
        "smoke (a small sample; of pydocs where the hub cannot be reached), prod (everything, until "
        "interrupted) or split (OUT/train and OUT/val)",
    )
    source: str = flag(
        "",
        "instead of FineWeb, or of SLIPWAY_SOURCE: pydocs (Python's documentation, which needs no network), fineweb, "
        "stdin (lines), stdin.jsonl, a path or an address of .txt, .jsonl, .parquet, any data set as "
        "hf://user/name[@revision][/config][:split], or several by weight: hf://a/b=0.7,corpus.jsonl=0.3",
        group="What is read",
    )
    dataset: str = flag(
        "HuggingFaceFW/fineweb", "user/name of the data set on the hub; one of these four flags means the hub, "
        "and smoke never falls back",
        group="What is read",
    )  # fmt: skip
    config: str = flag("sample-10BT", "hub: configuration of the data set", group="What is read")
    split: str = flag("train", "hub: split of the data set, or a part of it: train[:10%]", group="What is read")
    revision: str = flag("main", "hub: branch, tag or commit of the data set", group="What is read")
    text_column: str = flag(
        "", "name of the text column (default: `text`); json.caption is a field inside a column", group="What is read"
    )
    skip_invalid: bool = flag(
        False, "skip lines that are not documents and damaged files; they are counted and listed in "
        "manifest.json",
        group="What is read",
    )  # fmt: skip
    exhausted: str = flag(
        "first", "when a mixture ends: with its first exhausted source (first), or when all were read once (all)",
        group="What is read",
    )  # fmt: skip
    packages: str = flag("", "pydocs: more installed packages to read, comma-separated", group="What is read")
    take: int | None = flag(None, "stop after this many documents", group="What is kept")
    lines_per_shard: int | None = flag(None, "documents per shard (SHARD_LINES, else 250000)", group="What is written")
    val_ratio: float | None = flag(
        None, "share held out in OUT/val, the rest in OUT/train (split: 0.01)", group="What is kept"
    )
    validation: str = flag("", "hold out the documents of this source instead", group="What is read")
    seed: int = flag(1337, "seed of the choice of held-out documents", group="What is kept")
    min_score: float | None = flag(
        None,
        "leave out documents whose score (or language_score, where there is no score) is lower",
        group="What is kept",
    )
    language: str = flag("", "leave out documents in any other language", group="What is kept")
    filter: str = flag(
        "",
        "keep only rows for which this is true, such as 'language_score > 0.9 and len(text) > 200'",
        group="What is kept",
    )
    dedup: str = flag("", "exact: leave out exact duplicates of earlier documents", group="What is kept")
    format: str = flag("txt", "txt, jsonl or parquet", group="What is written")
    gzip: bool = flag(False, "the same as --compression gzip", group="What is written")
    compression: str = flag("", "gzip or zstd", group="What is written")
    workers: int = flag(
        0, "worker processes (0: one per CPU core); the result is the same with any number", group="What is written"
    )
    reuse_shards: bool = flag(False, "leave finished shards in OUT as they are", group="What is written")
    engine: str = flag(
        "",
        f"{' or '.join(packs.words('shard_engines'))}: spread the source over WORLD tasks of a cluster, then merge; "
        "Ctrl-C cancels them",
        group="Several machines",
    )
    rank: int = flag(
        0,
        "number of this machine among WORLD, from 0; each reads its share of the source's files",
        group="Several machines",
    )
    world: int = flag(1, "how many machines read the source; then run --merge OUT once", group="Several machines")
    out: str = flag("", "folder for the shards and manifest.json", group="What is written", unit="FOLDER")
    push: str = flag(
        "",
        "push OUT to the hub as a data set with a card; without a source, what OUT already holds: shards, token "
        "shards, conversations",
        group="What is written",
        unit="hf://user/name",
    )
    license: str = flag(
        "", "--push: license of the data set, where the source names none or another", group="What is written"
    )
    report: str = flag(
        "",
        "write report.html about this folder of shards into it, and do nothing else",
        group="Instead of making shards",
        unit="FOLDER",
    )
    verify: str = flag(
        "",
        "check this folder of shards against its manifest, and do nothing else",
        group="Instead of making shards",
        unit="FOLDER",
    )
    partial: bool = flag(
        False,
        "--verify: accept a folder whose making was interrupted, if its shards are whole",
        group="Instead of making shards",
    )
    merge: str = flag(
        "",
        "merge the shares of all ranks in this folder into one set of shards, and do nothing else",
        group="Instead of making shards",
        unit="FOLDER",
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerFlags(Output):
    source: str = flag("", "pydocs, fineweb, or a path; its text is made in the store if it is missing")
    text: str = flag("", "folder of text shards instead, as `inv shard` writes them", unit="FOLDER")
    partial: bool = flag(False, "use the whole shards of a --text folder whose making was interrupted")
    vocab_size: int | None = flag(
        None, "vocabulary size, including the 256 bytes and nine special tokens of chats (4096)"
    )
    retrain: bool = flag(False, "train again even if it exists")
    tokenizer_json: str = flag(
        "", "use this published tokenizer as it is; its last nine ids must be the special tokens of chats", unit="FILE"
    )
    out: str = flag("", "folder for tokenizer.json, its companions, training.yaml and training.toml", unit="FOLDER")


@dataclass(frozen=True, kw_only=True)
class TokenizerEvalFlags(Output):
    tokenizer: str = flag("", "folder of a tokenizer (default: var/tokenizer, else the store's)")
    source: str = flag("", "source whose held-out text is measured")
    text: str = flag("", "folder of text shards with a held-out part instead", unit="FOLDER")
    partial: bool = flag(False, "use the whole shards of a --text folder whose making was interrupted")
    peers: str = flag(
        "", "folder of GPT-2's and GPT-4's .tiktoken files (default: tiktoken's own cache)", unit="FOLDER"
    )
    download: bool = flag(False, "download the files of GPT-2 and GPT-4 into that folder if they are missing")
