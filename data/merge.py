"""Merge the shards of several ranks into a single folder: the manifest lists the files in place, without copying."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.errors import DataError, InputError
from data.manifest import read_manifest, shard_folders, write_manifest
from data.text.inputs import Share
from data.text.invalid_lines import MOST_LISTED

SAME = ("schema", "tool", "source", "options", "input", "world")


def merged(shares: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a manifest without totals, merged from the manifests of all ranks, by folder name.

    Raises InputError if shares differ in source, options or world size, or a share is missing, duplicated or
    unfinished.
    """
    if not shares:
        raise InputError("no share of a rank exists")
    first_name, first = next(iter(shares.items()))
    for name, one in shares.items():
        if "rank" not in one or not one["finished"]:
            raise InputError(f"{name}: {'not finished' if 'rank' in one else 'not a share of a rank'}")
        if differing := [key for key in SAME if one.get(key) != first.get(key)]:
            raise InputError(
                f"{name} and {first_name} differ in {', '.join(differing)}: the shares belong to different work"
            )
    there = Counter(one["rank"] for one in shares.values())
    wrong = [rank for rank in range(first["world"]) if there[rank] != 1]
    if wrong or len(there) != first["world"]:
        told = ", ".join(f"rank {rank} is {'missing' if not there[rank] else 'there twice'}" for rank in wrong[:8])
        raise InputError(f"of a world of {first['world']}: {told or 'more ranks exist'}")
    counts: Counter[str] = Counter()
    shards = []
    skipped: list[str] = []
    for name, one in sorted(shares.items(), key=lambda share: share[1]["rank"]):
        counts.update(one["counts"])
        skipped += one.get("skipped", [])
        shards += [{**shard, "name": f"{name}/{shard['name']}"} for shard in one["shards"]]
    return {
        **{key: first[key] for key in ("source", "options", "input")},
        "counts": dict(counts),
        "shards": shards,
        **({"skipped": skipped[:MOST_LISTED]} if skipped else {}),
    }


def merge(folder: Path) -> dict[str, Any]:
    """Write the manifest of each part of `folder`; return a summary.

    Raises InputError for shares that cannot be merged, DataError for a damaged share.
    """
    made = {}
    for part in shard_folders(folder):
        shares = {path.name: read_manifest(path, finished=False) for path in sorted(part.glob("rank-*"))}
        if not shares:
            raise InputError(f"{part}: the folder holds no share of a rank")
        try:
            one = merged(shares)
        except InputError as error:
            raise InputError(f"{part}: {error}") from None
        for name, share in shares.items():
            if name != Share(rank=share["rank"], world=share["world"]).folder:
                raise DataError(f"{part / name}: the manifest belongs to rank {share['rank']} of {share['world']}")
        made[part] = one
    for part, one in made.items():  # after all parts are validated
        shards = one.pop("shards")
        write_manifest(part, shards, True, one)
    return {
        "documents": sum(shard["lines"] for part in made for shard in read_manifest(part)["shards"]),
        "shards": sum(len(read_manifest(part)["shards"]) for part in made),
        "out": str(folder),
    }
