"""The `manifest.json` of a shard folder: the list of shards with sizes and hashes, and the state of the run.

Readers accept a folder only if the manifest is finished, or with `--partial`. Fields:

    schema              2
    tool                name and version of the program
    finished            false while shards are still being added
    source, options     the request; input: the revision or the files read
    fallback            true if FineWeb was requested and the hub was unreachable, so the text is not FineWeb
    shards              name, lines, bytes, raw_bytes (before compression), sha256 of each
    counts              documents read, and documents left out by reason
    skipped             the first invalid lines (--skip-invalid), by file and line; counts.invalid counts all
    rank, world         only for the share of one machine, stored in a separate folder; see merge.py
    total_lines, total_bytes, total_raw_bytes
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from data.errors import DataError
from store import untrusted_input

SCHEMA = 2
TOOL = "slipway 0.1.0"
MANIFEST = "manifest.json"
DRAFT = ".draft"  # subfolder for incomplete files
MANIFEST_BYTES = 256 * untrusted_input.MIB  # enough for a million shards
KINDS: dict[str, type] = {"finished": bool, "source": str, "options": dict, "shards": list, "total_lines": int}
PARTIAL = "to work with the finished shards only: --partial"
SHA256 = re.compile(r"[0-9a-f]{64}")
SHARD_NAME = re.compile(r"(rank-\d{5,}-of-\d{5,}/)?shard-\d{5,}\.((txt|jsonl)(\.gz|\.zst)?|parquet)")


def write_manifest(folder: Path, shards: list[dict[str, Any]], finished: bool, about: Mapping[str, Any]) -> dict:
    """Write the manifest, replacing an earlier manifest, and return the manifest after syncing to disk."""
    manifest = {
        "schema": SCHEMA,
        "tool": TOOL,
        "finished": finished,
        **about,
        "shards": shards,
        "total_lines": sum(shard["lines"] for shard in shards),
        "total_bytes": sum(shard["bytes"] for shard in shards),
        "total_raw_bytes": sum(shard["raw_bytes"] for shard in shards),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file atomically: write a draft, sync, rename."""
    # `store.local_files` is not needed: a single writer owns the folder (`lock_folder`), overwrites the draft of a
    # killed writer, and syncs the folder because the listed shards were renamed into the folder.
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        sync(file)
    os.replace(draft, path)
    sync_path(path.parent)


def read_manifest(folder: Path, finished: bool = True) -> dict[str, Any]:
    """Return the manifest of a folder.

    Raises DataError without a manifest, for a foreign manifest, or (with `finished`) for an unfinished run.
    """
    path = folder / MANIFEST
    try:
        manifest = untrusted_input.load(path, MANIFEST_BYTES, MANIFEST_BYTES // 16, half_pairs="surrogateescape")
        if untrusted_input.typed(manifest, "schema", int) != SCHEMA:
            raise DataError(f"{path}: expected a manifest of schema {SCHEMA}")
        for name, kind in KINDS.items():
            untrusted_input.typed(manifest, name, kind)
        if finished and not manifest["finished"]:
            raise DataError(f"{path}: not finished; to continue, run the same command again; {PARTIAL}")
        for shard in manifest["shards"]:
            _check_shard(path, shard)
        if len({shard["name"] for shard in manifest["shards"]}) != len(manifest["shards"]):
            raise DataError(f"{path}: lists a shard twice")
        return manifest
    except FileNotFoundError:
        ranks = "; the folder holds shares of ranks: inv shard --merge" if any(folder.glob("rank-*")) else ""
        raise DataError(f"{folder}: no {MANIFEST}; the shards were not finished{ranks}") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a manifest of shards: {error}") from None


def _check_shard(path: Path, shard: Any) -> None:
    """Raise DataError or UnusableDocument for an invalid shard entry."""
    if type(shard) is not dict or not SHARD_NAME.fullmatch(untrusted_input.typed(shard, "name", str)):
        raise DataError(
            f"{path}: {untrusted_input.printable_line(shard)} is not a shard entry: the name is not a shard name"
        )
    if not SHA256.fullmatch(untrusted_input.typed(shard, "sha256", str)):
        raise DataError(f"{path}: {shard['name']} has a sha256 that is not 64 hexadecimal digits")
    if any(untrusted_input.typed(shard, name, int) < 0 for name in ("lines", "bytes", "raw_bytes")):
        raise DataError(f"{path}: {shard['name']} has a negative size or count")


def list_shards(folder: Path) -> set[str]:
    """Return the names of the shards in the manifest of `folder`, finished or not.

    Raises DataError as read_manifest does.
    """
    return {shard["name"] for shard in read_manifest(folder, finished=False)["shards"]}


def is_shard(path: Path) -> bool:
    """Return True if the manifest in the same folder lists `path`; the lines of such a file are escaped."""
    return path in shards_among([path])


def shards_among(paths: Iterable[Path]) -> set[Path]:
    """Return the files that the manifest of their folder lists; each manifest is read once."""
    there, listed = list(paths), dict[Path, set[str]]()
    for folder in {one.parent for one in there}:
        with suppress(DataError):  # a manifest.json of a different program: the folder holds plain text
            listed[folder] = list_shards(folder) if (folder / MANIFEST).is_file() else set()
    return {one for one in there if one.name in listed.get(one.parent, ())}


def sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shard_folders(folder: Path) -> list[Path]:
    """Return the shard folders in `folder`: `train` and `val`, or `folder` without these."""
    return [path for path in (folder / "train", folder / "val") if path.is_dir()] or [folder]
