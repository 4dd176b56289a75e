"""The specs of the data steps as frozen records, and the one strict reader of configuration.

Light to import: plans are made where no pyarrow or tokenizers exist.
"""

import difflib
import glob
import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from data import filters, manifest, references
from data.errors import ConfigError, DataError
from store import strict_records

T = TypeVar("T")


SPECIALS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""The chat tokens of ours, which are the last ids of a tokenizer of ours."""
ENDS_ANSWER = "<|assistant_end|>"  # one of them
LEAST_VOCAB = 256 + len(SPECIALS)  # ids of any tokenizer of ours: the bytes, and the chat tokens
LONGEST = {"name": 100, "maker": 200, "purpose": 200}  # bytes of UTF-8, of what a persona says of itself
SAID_ALREADY = {"name": ("i am", "i'm", "my name is"), "maker": ("by", "made by"), "purpose": ("my purpose is",)}
JOINERS = "\u200c\u200d"  # invisible, and part of how names are spelt in Persian and Hindi
SUFFIXES = (".txt", ".jsonl", ".parquet")
PACKED = {".gz": "gzip", ".zst": "zstd"}
OF_DATASETS = (".csv", ".tsv", ".json", ".arrow", ".tar")  # files that the library `datasets` reads for us
ON_DISK = ("state.json", "dataset_dict.json")  # in a folder that `save_to_disk` has written
DEMONSTRATED = ("sort", "gsm8k", "mbpp")  # tasks of which there are conversations to learn from
TASKS = ("sort", "gsm8k", "math", "mbpp")  # whose answers we can check
FORMATS = ("txt", "jsonl", "parquet")


def load(kind: type[T], raw: Mapping[str, Any], where: str = "config") -> T:
    """Return a `kind` (a frozen dataclass) from plain JSON or YAML values.

    Unknown keys are refused with the nearest known one; types are checked, never coerced. Raises ConfigError.
    """
    try:
        return strict_records.read(kind, raw)
    except strict_records.Misfit as error:
        hint = f"; did you mean {error.near!r}?" if error.near else f"; known: {', '.join(sorted(error.known))}"
        raise ConfigError(f"{'.'.join([where, *error.place])}: {error}{hint if error.key else ''}") from None


def form_of(name: str) -> tuple[str, str]:
    """Return format and compression of a file by its name: `a.jsonl.gz` is (".jsonl", "gzip"); ("", "") is unknown.

    `name` may be a path or a URL; only those of HTTP have a query, elsewhere a question mark is part of the name.
    """
    path = Path(re.split("[?#]", name)[0] if name.startswith(("http://", "https://")) else name)
    packed = PACKED.get(path.suffix, "")
    suffix = Path(path.stem).suffix if packed else path.suffix
    known = suffix in SUFFIXES and not (packed and suffix == ".parquet")
    return (suffix, packed) if known else ("", "")


def filled_files(source: str) -> list[Path]:
    """Return the same as `source_files`. Raises ConfigError also for an empty file, which is a shard that got lost."""
    found = source_files(source)
    for one in found:
        if not one.stat().st_size:
            raise ConfigError(f"source {source}: {one} is empty; remove it, or make it again")
    return found


def source_files(source: str) -> list[Path]:
    """Return the files behind a path, folder or glob, in a fixed order.

    Raises ConfigError when there are none to read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        readable = (one for one in path.rglob("*") if form_of(one.name)[0] or one.suffix in OF_DATASETS)
        there = sorted(one for one in readable if one.is_file())
        found = _without_drafts([one for one in there if form_of(one.name)[0]], path)
        if is_on_disk(path) or not found:
            others = [one for one in there if one.suffix in OF_DATASETS and one.name != manifest.MANIFEST]
            found = _without_drafts(others, path)
        if not found:
            known = ", ".join((*SUFFIXES, *OF_DATASETS))
            raise ConfigError(f"source {source}: no {known} file in this folder")
        return found
    found = [path] if path.exists() else sorted(Path(one) for one in glob.glob(str(path), recursive=True))
    if not found:
        near = difflib.get_close_matches(path.name, ("pydocs", "fineweb"), 1)
        hint = f"did you mean {near[0]!r}?" if near else "give pydocs, fineweb, or a file, folder or glob that exists"
        raise ConfigError(f"source {source!r}: no such file; {hint}")
    for one in found:
        if not (form_of(one.name)[0] or one.suffix in OF_DATASETS) or not one.is_file():
            other = "a folder in a glob" if one.is_dir() else "a pipe or a device (--source stdin reads one)"
            seen = (one.suffix or "what has no suffix") if one.is_file() else other
            raise ConfigError(f"source {one}: cannot read {seen}; {', '.join((*SUFFIXES, *OF_DATASETS))} files can be")
    return found


def is_on_disk(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ON_DISK)


def is_of_datasets(reference: references.SetReference) -> bool:
    """Return whether the library `datasets` has to resolve it: it is on the hub, has a split, or is of no kind of ours.

    Raises ConfigError for a path with nothing to read.
    """
    if reference.is_hub or "://" in reference.place:
        return reference.is_hub
    path = Path(reference.place).expanduser()
    return bool(reference.split) or is_on_disk(path) or not form_of(source_files(reference.place)[0].name)[0]


def _without_drafts(found: list[Path], root: Path) -> list[Path]:
    """Return only the whole files of a folder of shards that are still being made, or were interrupted."""
    listed: dict[Path, set[str] | None] = {}
    for folder in {one.parent for one in found}:
        with suppress(DataError):  # otherwise it is not one of our names
            listed[folder] = manifest.listed(folder) if (folder / manifest.MANIFEST).is_file() else None
    return [
        one
        for one in found
        if manifest.DRAFT not in one.relative_to(root).parts
        and not (manifest.SHARD_NAME.fullmatch(one.name) and one.name not in (listed.get(one.parent) or {one.name}))
    ]


@dataclass(frozen=True, kw_only=True)
class Input:
    """An artifact that a step reads; another fingerprint than this one is refused."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Making:
    """The artifact that a step makes, the artifacts it reads, and the store."""

    store: str
    """Store, as an fsspec URI or a folder."""
    name: str
    """Name of the artifact, such as `base_checkpoints/smoke`."""
    fingerprint: str
    inputs: dict[str, Input] = field(default_factory=dict)
    """Inputs by role, such as `tokenizer` or `tokens`."""
    code: dict[str, str] = field(default_factory=dict)
    """Commit of the checkout that planned it, and a digest of what differed from that commit, for later plans."""
    spec: dict[str, Any] = field(default_factory=dict)
    """The settings that count, as plain values, stored beside it so that a plan can name what differs."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the facts that an artifact states about its origin."""
        inputs = {role: asdict(one) for role, one in self.inputs.items()}
        return {"code": self.code, "inputs": inputs, **({"spec": self.spec} if self.spec else {})}


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """Documents -> text shards."""

    source: str = "pydocs"
    """`pydocs`, `fineweb`, `stdin` (lines), `stdin.jsonl`, paths of .txt, .jsonl (.gz, .zst) and .parquet (a file, a
    folder or a glob), an https://, s3:// or gs:// address of such files, a data set as data/references.py has them, or
    several of these with weights."""
    dataset: str = "HuggingFaceFW/fineweb"
    """fineweb only: the data set on the hub."""
    config: str = "sample-10BT"
    """fineweb only: the data set's configuration."""
    split: str = "train"
    """fineweb only: the data set's split."""
    revision: str = "main"
    """fineweb only: branch, tag or commit."""
    packages: tuple[str, ...] = ()
    """pydocs only: installed packages whose docstrings are added to those of the standard library."""
    take: int | None = None
    """Stop after this many documents."""
    lines_per_shard: int = 250_000
    val_ratio: float = 0.05
    """Share of documents held out, chosen by content hash and seed; 0 writes no val shards."""
    seed: int = 1337
    validation: str = ""
    """Hold out the documents of this source instead of a share of the other."""
    min_score: float | None = None
    """Leave out documents whose `score`, or else `language_score`, is lower or unknown."""
    language: str = ""
    """Leave out documents of any other `language`."""
    dedup: str = ""
    """`exact`: leave out every document that was there before, to the byte."""
    format: str = "txt"
    compression: str = ""
    """`gzip` or `zstd`; parquet is always zstd inside."""
    source_fingerprint: str = ""
    """Digest of the content of local input files. Filled in by the plan."""
    fallback: bool = field(default=False, metadata={"newer": True})
    """True if FineWeb was asked for without a word and the hub could not be reached, so that `source` stands for it."""
    text_column: str = field(default="", metadata={"newer": True})
    """The column with the text where it is not `text`; `json.caption` is a field of a column."""
    filter: str = field(default="", metadata={"newer": True})
    """Keep only the rows of which this expression over their columns is true."""
    skip_invalid: bool = field(default=False, metadata={"newer": True})
    """Leave out lines that are no document, and files that are damaged, instead of ending there."""
    exhausted: str = field(default="first", metadata={"newer": True})
    """End of a mixture: with the `first` source that ends, or when `all` were read at least once."""

    def __post_init__(self) -> None:
        if self.filter:
            filters.parse(self.filter)
        if self.exhausted not in ("first", "all"):
            raise ConfigError(f"exhausted is {self.exhausted!r}; known: first, all")
        if not 0 <= self.val_ratio < 1:
            raise ConfigError(f"val_ratio is {self.val_ratio}; it must lie in [0, 1)")
        if self.lines_per_shard < 1:
            raise ConfigError(f"lines_per_shard is {self.lines_per_shard}; it must be at least 1")
        if self.min_score is not None and math.isnan(self.min_score):
            raise ConfigError("min_score is nan; it must be a number")
        if self.take is not None and not 1 <= self.take <= sys.maxsize:
            raise ConfigError(f"take is {self.take}; it must lie between 1 and {sys.maxsize}")
        for key, known in (("dedup", ("", "exact")), ("format", FORMATS), ("compression", ("", *PACKED.values()))):
            if getattr(self, key) not in known:
                raise ConfigError(f"{key} is {getattr(self, key)!r}; known: {', '.join(filter(None, known))}")
        if self.compression and self.format == "parquet":
            raise ConfigError("parquet is compressed inside (zstd); leave compression out")
        if self.validation and self.val_ratio:
            raise ConfigError("val_ratio and validation exclude each other; give one of them")


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Text shards -> byte-level BPE `tokenizer.json`."""

    vocab_size: int = 4096
    """All ids, the 256 bytes and the nine chat specials included; the specials are the last nine."""
    max_chars: int = 2_000_000_000
    """Characters of text to read, from the first document on: memory grows with the distinct words in them."""
    document_chars: int = 10_000
    """Characters read of each document, so that no giant one dominates."""

    def __post_init__(self) -> None:
        for key in ("max_chars", "document_chars"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TokensSpec:
    """Text shards + tokenizer -> memory-mapped token shards. Nothing to choose yet."""


@dataclass(frozen=True, kw_only=True)
class Persona:
    """The identity of the model: name, maker and purpose, in any script, as they stand inside of its sentences."""

    name: str
    """The words after "I am": `Bosun`, `Ursula K.`, `Мария`."""
    maker: str
    """The words after "I was made by": `the crew of Slipway`."""
    purpose: str
    """An infinitive, such as `to answer questions`; anything else becomes "My purpose is this: ..."."""

    def __post_init__(self) -> None:
        for key in ("name", "maker", "purpose"):
            value = getattr(self, key).strip()
            object.__setattr__(self, key, value)
            if not value.strip(JOINERS):
                raise ConfigError(f"the persona's {key} is empty")
            if not all(one.isprintable() or one in JOINERS for one in value) or "  " in value:
                raise ConfigError(f"the persona's {key} must be one line of plain characters, with one space at a time")
            if (size := len(value.encode())) > LONGEST[key]:
                raise ConfigError(f"the persona's {key} is {size} bytes long; at most {LONGEST[key]} fit")
            if value[-1] in ",;:\uff0c\uff1b\uff1a\u3001":
                raise ConfigError(
                    f"the persona's {key} ends in {value[-1]!r}, which would end up inside a sentence; remove it"
                )
            for words in SAID_ALREADY[key]:
                if value.casefold().startswith(f"{words} "):
                    raise ConfigError(
                        f"the persona's {key} begins with {words!r}, which the sentences already say; remove it"
                    )


@dataclass(frozen=True, kw_only=True)
class IdentitySpec:
    """Persona -> identity_conversations.jsonl and a held-out part."""

    persona: Persona
    seed: int = 1337
    source: str = field(default="", metadata={"newer": True})
    """A .jsonl with conversations of yours, in which the persona's name is said; "" = they are made of the persona."""
    source_fingerprint: str = field(default="", metadata={"newer": True})
    """Digest of the content of `source`. Filled in by the plan."""


@dataclass(frozen=True, kw_only=True)
class QuestionsSpec:
    """Text shards of pydocs -> question/answer conversations about them, and about things nobody taught."""

    seed: int = 1337


@dataclass(frozen=True, kw_only=True)
class ProblemsSpec:
    """A task -> problems whose answers can be checked."""

    task: str
    """`sort`, `gsm8k`, `math`, `mbpp`, or `file`: the user's own, from `source`."""
    source: str = ""
    """A folder with the task's files, or another data set with its splits; "" = the hub's. For `file`: a .jsonl with
    question and answer, or a data set as data/references.py has them."""
    revision: str = "main"
    """Branch, tag or commit of the data set on the hub."""
    seed: int = 1337
    source_fingerprint: str = ""
    """Digest of the content of local files. Filled in by the plan."""

    def __post_init__(self) -> None:
        if self.task not in (*TASKS, "file"):
            raise ConfigError(f"task is {self.task!r}; known: {', '.join(TASKS)}, file")
        if self.task == "sort" and self.source or self.task == "file" and not self.source:
            raise ConfigError(f"task {self.task} with source {self.source!r}: sort makes its own, file needs one")


@dataclass(frozen=True, kw_only=True)
class TalkSpec:
    """Files, or a data set of the hub -> conversations."""

    source: str
    """Paths of .jsonl and .parquet (a file, a folder or a glob), `hf://user/name[?column=its name]`, or anything else
    that data/references.py knows."""
    config: str = "default"
    """hf:// only: configuration of the data set."""
    split: str = "train"
    """hf:// only: split of the data set."""
    revision: str = "main"
    """hf:// only: branch, tag or commit."""
    take: int | None = None
    """Read only this many rows."""
    source_fingerprint: str = ""
    """Digest of the content of local files. Filled in by the plan."""

    def __post_init__(self) -> None:
        if self.take is not None and self.take < 1:
            raise ConfigError(f"take is {self.take}; it must be at least 1")


def talk_spec(words: str) -> TalkSpec:
    """Return the spec of `talk.jsonl`, or of a data set as data/references.py has them. Raises ConfigError."""
    if not words.startswith(references.HUB):
        return TalkSpec(source=words)
    found = references.parse(words)
    columns = words[words.index("?") :] if found.columns else ""
    take = found.first_rows
    part = {"split": found.split_name if take is not None else found.split} if found.split else {}
    if found.config:
        part["config"] = found.config
    return TalkSpec(source=f"{references.HUB}{found.place}{columns}", revision=found.revision, take=take, **part)
