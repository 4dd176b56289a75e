"""Data set cards: the `README.md` of a generated folder, readable by `datasets.load_dataset` without Slipway.

The folder holds text shards, token shards, conversations or problems. The YAML head of the card lists the files of each
split; the text describes content, origin and verification. The card depends only on the folder, so every machine writes
the same card.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.manifest import MANIFEST, read_manifest, shard_folders
from data.tokens.token_file import SUFFIX, is_token_folder, read_token_manifest
from store import local_files

CARD = "README.md"
MARK = "<!-- written by slipway; it is written anew with the files beside it -->"
SPLITS = {"train": "train", "val": "validation", "test": "test"}
BESIDE = {  # JSON lines files written by pipeline steps: configuration and split
    "conversations": ("default", "train"),
    "train": ("default", "train"),
    "val": ("default", "validation"),
    "test": ("default", "test"),
    "demonstrations": ("demonstrations", "train"),
    "identity_conversations": ("default", "train"),
    "identity_conversations.heldout": ("default", "validation"),
    "pydocs.train": ("pydocs", "train"),
    "pydocs.heldout": ("pydocs", "validation"),
    "other.train": ("other", "train"),
    "other.heldout": ("other", "validation"),
}
ESCAPED = (
    "One line is one document: a line break in it is written as `\\n`, a carriage return as `\\r`, a backslash as\n"
    "`\\\\`. `--format jsonl` and `--format parquet` write documents as they are."
)


@dataclass
class CardFacts:
    """Content of the card of a folder."""

    configs: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """File patterns by configuration and split."""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    """Table rows: split, documents, files, bytes."""
    about: list[str] = field(default_factory=list)
    """Lines of the description."""
    license: str = ""
    title: str = "Documents"

    def add(self, config: str, split: str, patterns: list[str], *figures: object) -> None:
        self.configs.setdefault(config, {})[split] = patterns
        name = split if config == "default" else f"{config}/{split}"
        self.rows.append((name, *(f"{one:,}" if isinstance(one, int) else str(one) for one in figures)))


def write(folder: Path) -> None:
    """Write the card of a folder, unless a user wrote the existing card or the folder has no Slipway files."""
    path = folder / CARD
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        return
    told = of_folder(folder)
    if told:
        local_files.replace(path, text_of(told).encode(errors="replace"))  # a file name may not be valid text


def of_folder(folder: Path) -> CardFacts | None:
    """Return the card facts of a folder, or None without Slipway files."""
    try:
        if is_token_folder(folder):
            return _of_tokens(folder)
        return (
            _of_shards(folder)
            if any((one / MANIFEST).is_file() for one in shard_folders(folder))
            else _of_lines(folder)
        )
    except DataError:  # not a folder of shards, or incomplete
        return None


def _of_shards(folder: Path) -> CardFacts:
    told, hashes = CardFacts(), []
    for part in shard_folders(folder):
        manifest = read_manifest(part)
        names = [str(one["name"]) for one in manifest["shards"]]
        where = "" if part == folder else f"{part.name}/"
        patterns = sorted(
            {where + "/".join([*name.split("/")[:-1], "shard-*" + name[name.index(".") :]]) for name in names}
        )
        hashes += [f"{where}{one['name']} {one['sha256']}\n" for one in manifest["shards"]]
        split = SPLITS["train" if part == folder else part.name]
        if names:
            told.add("default", split, patterns, manifest["total_lines"], len(names), manifest["total_bytes"])
    first = read_manifest(shard_folders(folder)[0])
    told.license = license_of(first.get("input", {}))
    told.about = [f"Source: {origin(first)}", ""]
    told.about += [f"- `{name}`: `{value}`" for name, value in chosen(first["options"])]
    told.about += ["", f"The sha256 of each file stands in `{MANIFEST}`; that of the list of them, each as", ""]
    told.about += [f"`PATH SHA256` on a line, is `{sha256(''.join(hashes).encode()).hexdigest()}`.", ""]
    if any(path.endswith((".txt", ".txt.gz", ".txt.zst")) for path in told.configs["default"].get("train", ())):
        told.about += [ESCAPED]
    return told


def _of_tokens(folder: Path) -> CardFacts | None:
    manifest = read_token_manifest(folder)
    shards = manifest["shards"]
    if not all(one["name"].endswith(SUFFIX) for one in shards):
        # Token shards of version 2 are not Arrow files, so only Slipway can read them.
        return None
    told = CardFacts(title="Tokens")
    for part in ("train", "val"):
        add_tokens(told, part, [one for one in shards if one["name"].startswith(part)], f"{part}-*{SUFFIX}")
    about_tokens(told, manifest)
    told.about += ["", f"A hash of each file, of its ids and of where documents begin, stands in `{MANIFEST}`."]
    return told


def add_tokens(told: CardFacts, part: str, shards: list[dict[str, Any]], pattern: str) -> None:
    """Add the token shards of `train` or `val`, if any, as files matching `pattern`."""
    if shards:
        documents, size = (sum(one[key] for one in shards) for key in ("documents", "bytes"))
        told.add("default", SPLITS[part], [pattern], documents, len(shards), size)


def about_tokens(told: CardFacts, manifest: Mapping[str, Any]) -> None:
    """Describe the rows of token shards, and the text shards they were made from."""
    text, total = manifest.get("text"), sum(one["tokens"] for one in manifest["shards"])
    if isinstance(text, dict) and text.keys() == {"source", "options", "input"}:
        told.license = license_of(text["input"])
        told.about = [f"Source: {origin(text)}", ""]
        told.about += [f"- `{name}`: `{value}`" for name, value in chosen(text["options"])]
    told.about += [
        "",
        f"A row has the ids of one document, of {manifest['vocab_size']:,}; the first is that of <|bos|>. They are",
        f"{total:,} tokens in all.",
        "",
        f"sha256 of the tokenizer: `{manifest['tokenizer_sha256']}`.",
    ]


def _of_lines(folder: Path) -> CardFacts | None:
    told = CardFacts(title="Conversations")
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem in BESIDE:
            content = path.read_bytes()
            told.add(*BESIDE[path.stem], [path.name], content.count(b"\n"), 1, len(content))
            told.about.append(f"- `{path.name}`: sha256 `{sha256(content).hexdigest()}`")
    return told if told.rows else None


def origin(manifest: Mapping[str, Any]) -> str:
    """Return the origin of the documents of a manifest, in one line."""
    if manifest.get("fallback"):
        return f"{manifest['source']}, since the hub could not be reached; this is not FineWeb"
    found = manifest.get("input", {})
    if "mixture" in found:
        return "; ".join(
            f"{one['weight']:g} of {origin({'source': one['source'], 'input': one})}" for one in found["mixture"]
        )
    if "dataset" in found:
        config = f", configuration {found['config']}" if found.get("config") else ""
        commit = f", commit {found['revision']}" if found.get("revision") else ""
        name = found["dataset"] if commit else Path(found["dataset"]).name
        return f"data set {name}{config}, split {found['split']}{commit}"
    return shareable(str(manifest["source"]))


def shareable(source: str) -> str:
    """Return a source without local folder names."""
    return ",".join(one if "://" in one else one.rpartition("/")[2] for one in source.split(","))


def license_of(about: Mapping[str, Any]) -> str:
    """Return the license of a source; of a mixture, the license shared by all sources, else ""."""
    if "mixture" in about:
        found = {license_of(one) for one in about["mixture"]}
        return found.pop() if len(found) == 1 else ""
    return str(about.get("license") or "")


def chosen(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the options that select documents, without unset options."""
    names = ("take", "val_ratio", "seed", "min_score", "language", "dedup", "filter", "text_column", "text_unit")
    return [(name, options[name]) for name in names if options.get(name)]


def joined(ours: str, there: str) -> str:
    """Return Slipway's card merged with an existing card: keep the user's text, and head fields except file lists.

    Raises DataError if the head of the existing card is unreadable.
    """
    import yaml

    found = re.match(r"(?:---\n(?P<head>.*?)\n?---\n)?(?P<text>.*)", there, re.DOTALL)
    assert found
    text = found["text"].partition(MARK)[0].strip()
    try:
        head = yaml.safe_load(found["head"] or "") or {}
        if not isinstance(head, dict):
            raise ValueError("it is no mapping")
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"the existing card has a head that cannot be read: {error}") from None
    theirs = {name: value for name, value in head.items() if name not in ("configs", "dataset_info")}
    if MARK in there and not text and theirs.keys() <= {"license"}:  # written by Slipway only
        return ours
    mine, about = ours.split("---\n", 2)[1:]
    return _card({**theirs, **yaml.safe_load(mine)}, f"{text}\n\n{about}" if text else about)


def text_of(told: CardFacts, name: str = "") -> str:
    """Return the card as text: a YAML head, then Markdown. `name`: the name of the data set, if known."""
    configs = [
        {"config_name": config, "data_files": [{"split": split, "path": paths} for split, paths in splits.items()]}
        for config, splits in told.configs.items()
    ]
    head = ({"license": told.license} if told.license else {}) | {"configs": configs}
    table = [
        "| split | rows | files | bytes |",
        "|---|---:|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in told.rows),
    ]
    body = [MARK, "", f"# {name or told.title}", "", *table, "", *told.about]
    return _card(head, "\n".join(body).rstrip() + "\n")


def _card(head: Mapping[str, Any], body: str) -> str:
    import yaml

    return f"---\n{yaml.safe_dump(dict(head), sort_keys=False, allow_unicode=True)}---\n{body}"
