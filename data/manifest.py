"""`manifest.json` of a folder of shards: which shards there are, what they hold, whether they are all.

schema              2
tool                what wrote it, with its version
finished            false while shards are still being added
source, options     what was asked for; input: the revision or the files that were read
fallback            true if FineWeb was meant and the hub could not be reached, so that this is not FineWeb
shards              name, lines, bytes, raw_bytes (before compression), sha256 of each
counts              documents read, and why some of them are not here
skipped             the first lines that are no document (--skip-invalid), by file and line; counts.invalid are all
rank, world         only of one machine's share, in a folder of its own beside those of the others; see merge.py
total_lines, total_bytes, total_raw_bytes
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from data.errors import DataError
from store import outside

SCHEMA = 2
TOOL = "slipway 0.1.0"
MANIFEST = "manifest.json"
DRAFT = ".draft"  # beside it, what is not whole yet
MANIFEST_BYTES = 256 * outside.MIB  # a million shards
KINDS: dict[str, type] = {"finished": bool, "source": str, "options": dict, "shards": list, "total_lines": int}
PARTIAL = "its whole shards alone: --partial"
SHA256 = re.compile(r"[0-9a-f]{64}")
SHARD_NAME = re.compile(r"(rank-\d{5,}-of-\d{5,}/)?shard-\d{5,}\.((txt|jsonl)(\.gz|\.zst)?|parquet)")


def write_manifest(folder: Path, shards: list[dict[str, Any]], finished: bool, about: Mapping[str, Any]) -> dict:
    """Write the manifest, and return it once it is on the disk in place of the one before."""
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
    """Write a JSON file atomically: a draft beside it, synced, renamed."""
    # Written without `store.local_files`: one writer is alone in the folder (`alone_in`), the next one writes over
    # what a killed one left, and the folder is synced since the shards that the manifest lists were renamed in it.
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        sync(file)
    os.replace(draft, path)
    sync_path(path.parent)


def read_manifest(folder: Path, finished: bool = True) -> dict[str, Any]:
    """Return the manifest of a folder.

    Raises DataError when the folder has no manifest, one that is not ours, or (`finished`) one of half a run.
    """
    path = folder / MANIFEST
    try:
        manifest = outside.load(path, MANIFEST_BYTES, MANIFEST_BYTES // 16, half_pairs="surrogateescape")
        if outside.typed(manifest, "schema", int) != SCHEMA:
            raise DataError(f"{path}: expected a manifest of schema {SCHEMA}")
        for name, kind in KINDS.items():
            outside.typed(manifest, name, kind)
        if finished and not manifest["finished"]:
            raise DataError(f"{path}: not finished; run its command again to continue; {PARTIAL}")
        for shard in manifest["shards"]:
            _check_shard(path, shard)
        if len({shard["name"] for shard in manifest["shards"]}) != len(manifest["shards"]):
            raise DataError(f"{path}: lists a shard twice")
        return manifest
    except FileNotFoundError:
        ranks = "; there are shares of ranks: inv shard --merge" if any(folder.glob("rank-*")) else ""
        raise DataError(f"{folder}: no {MANIFEST}; the shards were not finished{ranks}") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a manifest of shards: {error}") from None


def _check_shard(path: Path, shard: Any) -> None:
    """Raise DataError or Unreadable for what no Writer has listed."""
    if type(shard) is not dict or not SHARD_NAME.fullmatch(outside.typed(shard, "name", str)):
        raise DataError(f"{path}: {outside.shown(shard)} is not a shard entry: its name is not that of a shard")
    if not SHA256.fullmatch(outside.typed(shard, "sha256", str)):
        raise DataError(f"{path}: {shard['name']} has a sha256 that is not 64 hexadecimal digits")
    if any(outside.typed(shard, name, int) < 0 for name in ("lines", "bytes", "raw_bytes")):
        raise DataError(f"{path}: {shard['name']} has a negative size or count")


def listed(folder: Path) -> set[str]:
    """Return the names of the shards that the manifest of `folder` lists, finished or not.

    Raises DataError as read_manifest does.
    """
    return {shard["name"] for shard in read_manifest(folder, finished=False)["shards"]}


def is_shard(path: Path) -> bool:
    """Return whether the manifest beside `path` lists it, so that its lines are escaped."""
    if not (path.parent / MANIFEST).is_file():
        return False
    try:
        return path.name in listed(path.parent)
    except DataError:  # another program's manifest.json: the folder holds plain text
        return False


def sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Wait until the bytes of a file (the names in a folder) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parts(folder: Path) -> list[Path]:
    """Return the folders of shards in `folder`: `train` and `val`, or itself."""
    return [path for path in (folder / "train", folder / "val") if path.is_dir()] or [folder]
