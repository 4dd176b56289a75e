"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output

WORKSPACE = "folder of datasets, artifacts, runs, cache and hf_cache (default var/workspace)"


@dataclass(frozen=True, kw_only=True)
class ShardFlags(Output):
    mode: str = flag(
        "smoke", "smoke (a small sample), prod (everything, until interrupted) or split (OUT/train and OUT/val)"
    )
    source: str = flag(
        "",
        "pydocs, fineweb, stdin (lines), stdin.jsonl, a path or an address of .txt, .jsonl, .parquet, any data set as "
        "hf://user/name[@revision][/config][:split], or several by weight: hf://a/b=0.7,corpus.jsonl=0.3",
        group="What is read",
    )
    dataset: str = flag(
        "HuggingFaceFW/fineweb", "user/name of a data set on the hub (without --source, or with fineweb)",
        group="What is read",
    )  # fmt: skip
    config: str = flag("sample-10BT", "--dataset: its configuration", group="What is read")
    split: str = flag("train", "--dataset: its split, or a part of it: train[:10%]", group="What is read")
    revision: str = flag("main", "--dataset: branch, tag or commit", group="What is read")
    text_column: str = flag(
        "", "the column with the text, where it is not `text`; json.caption is a field of one", group="What is read"
    )
    skip_invalid: bool = flag(
        False, "leave out lines that are no document and files that are damaged; they are counted and listed in "
        "manifest.json",
        group="What is read",
    )  # fmt: skip
    exhausted: str = flag(
        "first", "a mixture ends with the first source that does, or when all were read once (all)",
        group="What is read",
    )  # fmt: skip
    packages: str = flag("", "pydocs: installed packages to read too, comma-separated", group="What is read")
    take: int | None = flag(None, "stop after this many documents", group="What is kept")
    lines_per_shard: int | None = flag(None, "documents per shard (SHARD_LINES, else 250000)", group="What is written")
    val_ratio: float | None = flag(
        None, "share held out in OUT/val, the rest in OUT/train (split: 0.01)", group="What is kept"
    )
    validation: str = flag("", "hold out the documents of this source instead", group="What is read")
    seed: int = flag(1337, "of the held-out choice", group="What is kept")
    min_score: float | None = flag(
        None, "leave out documents whose score, or else language_score, is lower", group="What is kept"
    )
    language: str = flag("", "leave out documents in any other language", group="What is kept")
    filter: str = flag(
        "", "keep rows of which this is true, such as 'language_score > 0.9 and len(text) > 200'", group="What is kept"
    )
    dedup: str = flag("", "exact: leave out documents that were there before", group="What is kept")
    format: str = flag("txt", "txt, jsonl or parquet", group="What is written")
    gzip: bool = flag(False, "the same as --compression gzip", group="What is written")
    compression: str = flag("", "gzip or zstd", group="What is written")
    workers: int = flag(
        0, "processes (0: as many as processors); changes no byte of the result", group="What is written"
    )
    reuse_shards: bool = flag(False, "leave finished shards in OUT as they are", group="What is written")
    engine: str = flag(
        "",
        "ray or slurm: spread the source over WORLD tasks of a cluster, then merge; Ctrl-C cancels them",
        group="Several machines",
    )
    rank: int = flag(
        0,
        "which of WORLD machines this is, from 0; each reads its share of the source's files",
        group="Several machines",
    )
    world: int = flag(1, "how many machines read the source; --merge OUT when all have", group="Several machines")
    out: str = flag("", "folder for the shards and manifest.json", group="What is written", unit="FOLDER")
    push: str = flag(
        "",
        "then put OUT on the hub as a data set with a card; alone, what is in OUT already: shards, token shards, "
        "conversations",
        group="What is written",
        unit="hf://user/name",
    )
    license: str = flag(
        "", "--push: of the data set, when the source names none or it is another", group="What is written"
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
        False, "--verify: whole shards are enough where making them was interrupted", group="Instead of making shards"
    )
    merge: str = flag(
        "",
        "make the shares of all ranks in this folder one set of shards, and do nothing else",
        group="Instead of making shards",
        unit="FOLDER",
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerFlags(Output):
    source: str = flag("", "pydocs, fineweb, or a path: its text in the store, which is made when it is missing")
    text: str = flag("", "folder of text shards instead, as `inv shard` writes it", unit="FOLDER")
    partial: bool = flag(False, "take the whole shards of a --text whose making was interrupted")
    vocab_size: int | None = flag(None, "ids, the 256 bytes and nine chat specials included (4096)")
    retrain: bool = flag(False, "make it again, though it is there")
    tokenizer_json: str = flag(
        "", "take this published tokenizer as it is; its last ids must be the nine chat specials", unit="FILE"
    )
    out: str = flag("", "folder for tokenizer.json, its companions, training.yaml and training.toml", unit="FOLDER")


@dataclass(frozen=True, kw_only=True)
class TokenizerEvalFlags(Output):
    tokenizer: str = flag("", "folder of a tokenizer (default: var/tokenizer, else the store's)")
    source: str = flag("", "whose held-out text")
    text: str = flag("", "folder of text shards with a held-out part instead", unit="FOLDER")
    partial: bool = flag(False, "take the whole shards of a --text whose making was interrupted")
    peers: str = flag(
        "", "folder of GPT-2's and GPT-4's .tiktoken files (default: tiktoken's own cache)", unit="FOLDER"
    )
    download: bool = flag(False, "fetch the files of GPT-2 and GPT-4 into that folder when they are not there")


@dataclass(frozen=True, kw_only=True)
class PipelineFlags(Output):
    input: str = flag("", "the corpus: what `inv shard --source` takes")
    experiment: str = flag("", "names the folders (RUN_EXPERIMENT, else runpod-2b)")
    workspace: str = flag("", WORKSPACE, unit="FOLDER")
    train_shard_lines: int | None = flag(None, "lines per shard (SHARD_LINES, else 250000)")
    validation: str = flag("", "hold out this corpus instead of a share of the other")
    reuse_shards: bool = flag(
        False, "leave finished shards as they are, whatever they were made of (so does RUN_SHARD=0)"
    )
    tokenizer_json: str = flag(
        "", "take this published tokenizer; its last ids must be the nine chat specials", unit="FILE"
    )
    vocab_size: int | None = flag(None, "ids of the tokenizer and the model instead of the recipe's")
    profile: str = flag("", "recipe of model and training, or a .yaml file (RUN_CONFIG, else runpod_1b)")
    config: str = flag("", "the same as --profile", unit="FILE")
    steps: int | None = flag(None, "optimizer steps instead of the recipe's; the schedule is rescaled to them")
    dry_run: bool = flag(False, "only say what would be done")


@dataclass(frozen=True, kw_only=True)
class TreeFlags(Output):
    workspace: str = flag("", WORKSPACE, unit="FOLDER")
    experiment: str = flag("", "only the folders of this one")
    provider: str = flag("", "local: folders of this machine are all that can be shown")
