"""Specs of the data steps as frozen dataclasses, and the strict configuration reader.

Cheap to import, because plans are made on machines without pyarrow and tokenizers.
"""

import difflib
import glob
import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from data import manifest, references
from data.errors import ConfigError, DataError
from store import packs, strict_records

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
"""Slipway's chat tokens, which are the last ids of a tokenizer trained by Slipway."""
ENDS_ANSWER = "<|assistant_end|>"
LEAST_VOCAB = 256 + len(SPECIALS)  # minimum vocabulary of Slipway's tokenizers: the bytes and the chat tokens
LONGEST = {"name": 100, "maker": 200, "purpose": 200}  # maximum UTF-8 bytes of each persona field
SAID_ALREADY = {"name": ("i am", "i'm", "my name is"), "maker": ("by", "made by"), "purpose": ("my purpose is",)}
JOINERS = "\u200c\u200d"  # invisible characters used in the spelling of Persian and Hindi names
SUFFIXES = (".txt", ".jsonl", ".parquet")
PACKED = {".gz": "gzip", ".zst": "zstd"}
OF_DATASETS = (".csv", ".tsv", ".json", ".arrow", ".tar")  # files read with the library `datasets`
OTHER_TEXTS = (".md", ".rst", ".html", ".htm", ".pdf", ".docx", ".epub")  # not read; a plan names them
ON_DISK = ("state.json", "dataset_dict.json")  # files in a folder written by `save_to_disk`
DEMONSTRATED = ("sort", "gsm8k", "mbpp")  # tasks with conversations for training
TASKS = ("sort", "gsm8k", "math", "mbpp")  # tasks with verifiable answers
FORMATS = ("txt", "jsonl", "parquet")
# The most held-out text that is evaluated: a single process evaluates, while every GPU of the machine bills.
HELDOUT_TOKENS = 80 << 19  # as nanochat
HELDOUT_BYTES = 64 << 20  # xz -9e compresses about 2 MB a second, and its dictionary has 64 MiB
NAMED_SOURCES = ("pydocs", "fineweb", "stdin", "stdin.jsonl")  # sources that are no files
UNITS = ("line", "file", "folder")  # of `TextSpec.text_unit`; a user types one of the first two


def load(kind: type[T], raw: Mapping[str, Any], where: str = "config") -> T:
    """Return a `kind` (a frozen dataclass) from plain JSON or YAML values.

    Raises ConfigError for an unknown key, naming the nearest known key, and for a wrong type; values are never coerced.
    """
    try:
        return strict_records.read(kind, raw)
    except strict_records.RecordMismatch as error:
        hint = (
            f"; did you mean {error.closest_key!r}?"
            if error.closest_key
            else f"; known: {', '.join(sorted(error.known))}"
        )
        raise ConfigError(f"{'.'.join([where, *error.place])}: {error}{hint if error.key else ''}") from None


def form_of(name: str) -> tuple[str, str]:
    """Return format and compression from a file name: (".jsonl", "gzip") for `a.jsonl.gz`, ("", "") if unknown.

    `name` may be a path or a URL. Only HTTP URLs have a query; elsewhere a question mark belongs to the name.
    """
    path = Path(re.split("[?#]", name)[0] if name.startswith(("http://", "https://")) else name)
    packed = PACKED.get(path.suffix, "")
    suffix = Path(path.stem).suffix if packed else path.suffix
    known = suffix in SUFFIXES and not (packed and suffix == ".parquet")
    return (suffix, packed) if known else ("", "")


def filled_files(source: str) -> list[Path]:
    """Return the result of `source_files`. Raises ConfigError also for an empty file, a sign of a lost shard."""
    found = source_files(source)
    for one in found:
        if not one.stat().st_size:
            raise ConfigError(f"source {source}: {one} is empty; remove the file, or make the file again")
    return found


def source_files(source: str) -> list[Path]:
    """Return the files of a path, folder or glob, in a fixed order.

    Raises ConfigError without a readable file.
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
            seen = (one.suffix or "a file without a suffix") if one.is_file() else other
            raise ConfigError(f"source {one}: cannot read {seen}; readable: {', '.join((*SUFFIXES, *OF_DATASETS))}")
    return found


def text_unit(source: str, typed: str) -> tuple[str, str]:
    """Return `TextSpec.text_unit` of a source of files on this machine, and the meaning as text, "" without .txt files.

    typed: `line`, `file`, or "" for `folder` if the source has a folder of .txt files, else `line`. Raises ConfigError.
    """
    if typed not in ("", *UNITS[:2]):
        raise ConfigError(f"--text-unit {typed}: known: {', '.join(UNITS[:2])}")
    found, left = set(), set[str]()
    for words in [one for one, _ in references.parse_mixture(source)] or [source]:
        place = references.parse(words).place
        path = Path(place).expanduser()
        if words in NAMED_SOURCES or "://" in words or not (path.exists() or glob.has_magic(place)):
            continue
        texts = {one for one in source_files(place) if form_of(one.name)[0] == ".txt"}
        if texts - manifest.shards_among(texts):
            found.add("folder" if path.is_dir() else "line")
            left |= {one.suffix for one in path.rglob("*") if one.suffix in OTHER_TEXTS} if path.is_dir() else set()
    unit = typed or ("folder" if "folder" in found else "line")
    other = "" if typed else f"; --text-unit {'line: each line' if unit == 'folder' else 'file: each .txt file'}"
    what = {"line": "line of a .txt file", "file": ".txt file", "folder": ".txt file in a folder"}[unit]
    other += f"; not read: {', '.join(sorted(left))} files" if left else ""
    return unit, f"each {what} is a document{other}" if found else ""


def is_on_disk(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ON_DISK)


def is_of_datasets(reference: references.SetReference) -> bool:
    """Return True if `datasets` must resolve the reference: on the hub, with a split, or in a format only it reads.

    Raises ConfigError for a path without readable files.
    """
    if reference.is_hub or "://" in reference.place:
        return reference.is_hub
    path = Path(reference.place).expanduser()
    return bool(reference.split) or is_on_disk(path) or not form_of(source_files(reference.place)[0].name)[0]


def _without_drafts(found: list[Path], root: Path) -> list[Path]:
    """Return the files of a folder without drafts and without shards missing from the manifest."""
    listed: dict[Path, set[str] | None] = {}
    for folder in {one.parent for one in found}:
        with suppress(DataError):  # not a shard manifest of Slipway
            listed[folder] = manifest.list_shards(folder) if (folder / manifest.MANIFEST).is_file() else None
    return [
        one
        for one in found
        if manifest.DRAFT not in one.relative_to(root).parts
        and not (manifest.SHARD_NAME.fullmatch(one.name) and one.name not in (listed.get(one.parent) or {one.name}))
    ]


@dataclass(frozen=True, kw_only=True)
class Input:
    """An artifact read by a step; a different fingerprint is rejected."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The artifact made by a step, the input artifacts, and the store."""

    store: str
    """Store, as an fsspec URI or a folder."""
    name: str
    """Name of the artifact, such as `base_checkpoints/smoke`."""
    fingerprint: str
    inputs: dict[str, Input] = field(default_factory=dict)
    """Inputs by role, such as `tokenizer` or `tokens`."""
    code: dict[str, str] = field(default_factory=dict)
    """Commit of the planning checkout, and a digest of uncommitted changes, for later plans."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Settings that determine the artifact, as plain values, stored so that a plan can name differences."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the provenance stored with the artifact: code, inputs and spec."""
        inputs = {role: asdict(one) for role, one in self.inputs.items()}
        return {"code": self.code, "inputs": inputs, **({"spec": self.spec} if self.spec else {})}


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """Documents -> text shards."""

    source: str = "pydocs"
    """`pydocs`, `fineweb`, `stdin` (lines), `stdin.jsonl`, paths of .txt, .jsonl (.gz, .zst) and .parquet (a file, a
    folder or a glob), an https://, s3:// or gs:// address of such files, a data set reference (see data/references.py),
    or several sources with weights."""
    dataset: str = "HuggingFaceFW/fineweb"
    """fineweb only: the data set on the hub."""
    config: str = "sample-10BT"
    """fineweb only: the data set's configuration."""
    split: str = "train"
    """fineweb only: the data set's split."""
    revision: str = "main"
    """fineweb only: branch, tag or commit."""
    packages: tuple[str, ...] = ()
    """pydocs only: installed packages to document in addition to the standard library."""
    take: int | None = None
    """Stop after this many documents."""
    lines_per_shard: int = 250_000
    val_ratio: float = 0.05
    """Share of documents held out, chosen by content hash and seed; 0 writes no val shards."""
    seed: int = 1337
    validation: str = ""
    """Hold out the documents of this source instead of a share of `source`."""
    min_score: float | None = None
    """Leave out documents with a lower or unknown `score`, or else `language_score`."""
    language: str = ""
    """Leave out documents with a different `language`."""
    dedup: str = ""
    """`exact`: leave out every byte-identical copy of an earlier document."""
    format: str = "txt"
    compression: str = ""
    """`gzip` or `zstd`; parquet always uses zstd internally."""
    source_fingerprint: str = ""
    """Digest of the content of local input files. Filled in by the plan."""
    fallback: bool = field(default=False, metadata={"newer": True})
    """True if `source` replaces FineWeb as the default source because the hub was unreachable."""
    text_column: str = field(default="", metadata={"newer": True})
    """The text column if not `text`; `json.caption` is a field of a column."""
    filter: str = field(default="", metadata={"newer": True})
    """Keep only rows that satisfy this expression over the columns."""
    skip_invalid: bool = field(default=False, metadata={"newer": True})
    """Leave out lines that are not documents, and damaged files, instead of raising an error."""
    exhausted: str = field(default="first", metadata={"newer": True})
    """End of a mixture: at the end of the `first` exhausted source, or after `all` were read at least once."""
    text_unit: str = field(default="line", metadata={"newer": True})
    """Document of .txt files: a `line`, a `file`, or for `folder` a file in a folder and a line of any other file. Of
    Slipway's own shards, lines are the documents."""

    def __post_init__(self) -> None:
        if self.filter:
            from data import filters  # most sources have none

            filters.parse(self.filter)
        if self.exhausted not in ("first", "all"):
            raise ConfigError(f"exhausted is {self.exhausted!r}; known: first, all")
        if self.text_unit not in UNITS:
            raise ConfigError(f"text_unit is {self.text_unit!r}; known: {', '.join(UNITS)}")
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
            raise ConfigError("val_ratio and validation exclude each other; give only one of the two")


@dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """Text shards -> byte-level BPE `tokenizer.json`."""

    vocab_size: int = 4096
    """Number of ids, including the 256 bytes and the nine chat specials; the specials are the last nine."""
    max_chars: int = 2_000_000_000
    """Characters of text to read, from the first document on: memory grows with the number of distinct words."""
    document_chars: int = 10_000
    """Maximum characters read per document, so that a very large document does not dominate."""

    def __post_init__(self) -> None:
        for key in ("max_chars", "document_chars"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is {getattr(self, key)}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class TokensSpec:
    """Text shards + tokenizer -> memory-mapped token shards; no options yet."""


@dataclass(frozen=True, kw_only=True)
class Persona:
    """The identity of the model: name, maker and purpose, in any script, in the form used inside sentences."""

    name: str
    """The words after "I am": `Bosun`, `Ursula K.`, `Мария`."""
    maker: str
    """The words after "I was made by": `the crew of Slipway`."""
    purpose: str
    """An infinitive, such as `to answer questions`; other text becomes "My purpose is this: ..."."""

    def __post_init__(self) -> None:
        for key in ("name", "maker", "purpose"):
            value = getattr(self, key).strip()
            object.__setattr__(self, key, value)
            if not value.strip(JOINERS):
                raise ConfigError(f"the persona's {key} is empty")
            if not all(one.isprintable() or one in JOINERS for one in value) or "  " in value:
                raise ConfigError(f"the persona's {key} must be one line of plain characters, with one space at a time")
            if (size := len(value.encode())) > LONGEST[key]:
                raise ConfigError(f"the persona's {key} is {size} bytes long; the limit is {LONGEST[key]}")
            if value[-1] in ",;:\uff0c\uff1b\uff1a\u3001":
                raise ConfigError(
                    f"the persona's {key} ends in {value[-1]!r}, which would end up inside a sentence; remove "
                    f"{value[-1]!r}"
                )
            for words in SAID_ALREADY[key]:
                if value.casefold().startswith(f"{words} "):
                    raise ConfigError(
                        f"the persona's {key} begins with {words!r}, which the sentences already say; remove {words!r}"
                    )


@dataclass(frozen=True, kw_only=True)
class IdentitySpec:
    """Persona -> identity_conversations.jsonl and a held-out part."""

    persona: Persona
    seed: int = 1337
    source: str = field(default="", metadata={"newer": True})
    """A user's .jsonl of conversations that mention the persona's name; "" = generate conversations from the
    persona."""
    source_fingerprint: str = field(default="", metadata={"newer": True})
    """Digest of the content of `source`. Filled in by the plan."""


@dataclass(frozen=True, kw_only=True)
class QuestionsSpec:
    """Text shards of pydocs -> question/answer conversations about them, and about topics absent from training."""

    seed: int = 1337


@dataclass(frozen=True, kw_only=True)
class ProblemsSpec:
    """A task -> problems with verifiable answers."""

    task: str
    """`sort`, `gsm8k`, `math`, `mbpp`, or `file`: the user's problems, from `source`."""
    source: str = ""
    """A folder with the task's files, or a different data set with its splits; "" = the hub's. For `file`: a .jsonl
    with question and answer, or a data set reference (see data/references.py)."""
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
    """Paths of .jsonl and .parquet (a file, a folder or a glob), `hf://user/name[?column=its name]`, or a data set
    reference (see data/references.py)."""
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
    reader: str = field(default="", metadata={"newer": True})
    """Rows of another kind: the word of a pack's `row_readers`; "" = conversations."""

    def __post_init__(self) -> None:
        if self.take is not None and self.take < 1:
            raise ConfigError(f"take is {self.take}; it must be at least 1")
        if said := packs.missing_pack_message("row_readers", self.reader):
            raise ConfigError(f"{self.source}: {said}")


def conversation_spec(words: str) -> TalkSpec:
    """Return the spec of a file such as `talk.jsonl`, or of a data set reference. Raises ConfigError.

    The word of a pack's row reader, such as `pairs:`, may stand in front.
    """
    reader, _, rest = words.partition(":")
    if reader in packs.words("row_readers"):
        return replace(conversation_spec(rest), reader=reader)
    if not words.startswith(references.HUB):
        return TalkSpec(source=words)
    found = references.parse(words)
    columns = words[words.index("?") :] if found.columns else ""
    take = found.first_rows
    part = {"split": found.split_name if take is not None else found.split} if found.split else {}
    if found.config:
        part["config"] = found.config
    return TalkSpec(source=f"{references.HUB}{found.place}{columns}", revision=found.revision, take=take, **part)
