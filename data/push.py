"""Publish a finished folder as a data set on the hub: `inv shard --push hf://user/name`.

From a folder of text shards, conversations, problems or token shards, and an address, `push` makes a single commit with
the files and a card. Files already on the hub are not uploaded again; shards of an earlier push that no longer exist
are removed in the same commit. Files of other authors are kept: a name conflict is an error, and an existing card keeps
everything but its file lists. Token shards are converted to parquet with a list of ids per document: compressed, and
visible in the hub's viewer.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data import card
from data.config import ConfigError
from data.errors import DataError, InputError
from data.events import emit
from data.manifest import MANIFEST, MANIFEST_BYTES, list_shards, read_manifest, shard_folders
from data.tokens.token_file import is_token_folder, read_token_manifest
from data.verify import verify

if TYPE_CHECKING:
    from store.backends.hub import Repository

ADDRESS = re.compile(r"hf://(?:datasets/)?(?P<name>[\w.-]+/[\w.-]+)")
ROWS = 1000  # rows per row group of token shards


@dataclass(frozen=True, kw_only=True)
class PushSpec:
    """Destination on the hub, and license."""

    to: str
    """`hf://user/name`."""
    license: str = ""
    """License id as spelled by the hub; "" = the license of the source."""

    def __post_init__(self) -> None:
        if not ADDRESS.fullmatch(self.to):
            raise ConfigError(f"--push {self.to}: expected hf://user/name")


def push(spec: PushSpec, folder: Path) -> dict[str, Any]:
    """Upload a folder to the hub; return the address and the commit.

    Raises InputError for an unfinished or foreign folder, DataError if the hub rejects the upload.
    """
    from store.backends.hub import Repository
    from store.manifest import StoreError

    found = ADDRESS.fullmatch(spec.to)
    assert found
    name = found["name"]
    with tempfile.TemporaryDirectory(prefix="slipway-push-") as scratch:
        files, told = _tokens(folder, Path(scratch)) if is_token_folder(folder) else _files(folder)
        told.license = spec.license or told.license
        emit("note", text=f"{name}: {len(files)} files to send; the hub may already have some files")
        try:
            place = Repository(f"hf://datasets/{name}")
            place.create()
            there = place.listing()
            before = _content(place, card.CARD, there).decode(errors="replace")
            sent = _sent(place, there, before, Path(scratch))
            if taken := [one for one in files if one in there and one not in sent]:
                raise InputError(
                    f"--push {spec.to}: {taken[0]} exists and was not written by Slipway; choose a different name"
                )
            gone = [one for one in sent if one in there and one not in files]
            text = card.joined(card.text_of(told, name.split("/")[1]), before)
            place.put({**files, card.CARD: text.encode()}, gone)
            commit = place.current_revision()
        except StoreError as error:
            raise DataError(f"--push {spec.to}: {error}") from None
    return {"pushed": f"hf://{name}", "commit": commit, "files": len(files) + 1}


def _content(place: "Repository", name: str, there: Mapping[str, Any]) -> bytes:
    """Return the content of a small file in the repository, or b"" if missing."""
    raw, size = b"", min(there[name].size, MANIFEST_BYTES) if name in there else 0
    while len(raw) < size and (piece := place.get(name, len(raw), size)):
        raw += piece
    return raw


def _sent(place: "Repository", there: Mapping[str, Any], before: str, scratch: Path) -> set[str]:
    """Return the files of an earlier push: names in Slipway's part of the card and in Slipway's manifests."""
    _, mark, ours = before.partition(card.MARK)
    if not mark:
        return set()
    names = set(re.findall(r"^- `([^`]+)`: sha256 `", ours, re.MULTILINE))
    for part in ("", "train/", "val/"):
        (scratch / MANIFEST).write_bytes(_content(place, part + MANIFEST, there))
        with suppress(DataError):  # no manifest, or a manifest of a different program
            names |= {part + MANIFEST, *(part + one for one in list_shards(scratch))}
    return names


def _files(folder: Path) -> tuple[dict[str, Any], card.CardFacts]:
    """Return the files to upload by repository path, and the card facts. Raises InputError."""
    told = card.of_folder(folder)
    if told is None:
        raise InputError(f"{folder}: no finished shards, conversations or problems of Slipway in the folder")
    if not any((part / MANIFEST).is_file() for part in shard_folders(folder)):
        return {
            path: folder / path for splits in told.configs.values() for some in splits.values() for path in some
        }, told
    files: dict[str, Any] = {}
    for part in shard_folders(folder):
        if problems := verify(part):
            raise InputError(f"{part}: {'; '.join(problems)}; make the shards again")
        manifest = read_manifest(part)
        names = [one["name"] for one in manifest["shards"]]
        files |= {str((part / one).relative_to(folder)): part / one for one in names}
        files[str((part / MANIFEST).relative_to(folder))] = json.dumps(shareable(manifest), indent=1).encode()
    return files, told


def shareable(value: Any) -> Any:
    """Return a manifest without local folder names in its sources."""
    if isinstance(value, dict):
        return {key: shareable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shareable(one) for one in value]
    return card.shareable(value) if isinstance(value, str) and value.startswith(("/", "~")) else value


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _tokens(folder: Path, scratch: Path) -> tuple[dict[str, Any], card.CardFacts]:
    """Return token shards converted to parquet, one document per row, and the card facts. Raises InputError."""
    import pyarrow
    import pyarrow.parquet

    from data.tokens.stream import open_shard

    if problems := verify(folder):
        raise InputError(f"{folder}: {'; '.join(problems)}; make them again")
    manifest = read_token_manifest(folder)
    files: dict[str, Any] = {}
    told = card.CardFacts()
    for part in ("train", "val"):
        shards = [one for one in manifest["shards"] if one["name"].startswith(part)]
        for one in shards:
            target = scratch / Path(one["name"]).with_suffix(".parquet").name
            shard = open_shard(folder / one["name"], manifest["tokenizer_sha256"])
            kind = pyarrow.list_(pyarrow.from_numpy_dtype(shard.ids.dtype))
            with pyarrow.parquet.ParquetWriter(
                target, pyarrow.schema([("input_ids", kind)]), compression="zstd"
            ) as out:
                for first in range(0, shard.header.num_documents, ROWS):
                    starts = shard.starts[first : first + ROWS + 1].astype("int64")
                    ids = pyarrow.array(shard.ids[starts[0] : starts[-1]])
                    places = pyarrow.array((starts - starts[0]).astype("int32"))
                    rows = pyarrow.ListArray.from_arrays(places, ids)
                    out.write_table(pyarrow.table({"input_ids": rows.cast(kind)}))
            files[target.name] = target
        card.add_tokens(told, part, shards, f"{part}-*.parquet")
    card.about_tokens(told, manifest)
    told.about += ["", *(f"- `{name}`: sha256 `{_sha256(path)}`" for name, path in files.items())]
    return files, told
