"""Are the shards of a folder the bytes that were written?"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.manifest import MANIFEST, read_manifest


def parts(folder: Path) -> list[Path]:
    """The folders of shards in `folder`: `train` and `val`, or itself."""
    return [path for path in (folder / "train", folder / "val") if path.is_dir()] or [folder]


def verify(folder: Path) -> list[str]:
    """What is wrong with the shards of one folder, in words; empty when every shard is what the manifest says.

    Reads all of it, several shards at a time.
    """
    try:
        manifest = read_manifest(folder, finished=False)
    except DataError as error:
        return [str(error)]
    problems = [] if manifest["finished"] else [f"{MANIFEST}: not finished; the command that began it goes on"]
    names = {shard["name"] for shard in manifest["shards"]}
    problems += [
        f"{path.name}: not in the manifest" for path in sorted(folder.glob("shard-*")) if path.name not in names
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return problems + [one for one in pool.map(lambda shard: _problem(folder, shard), manifest["shards"]) if one]


def _problem(folder: Path, shard: dict[str, Any]) -> str:
    path = folder / shard["name"]
    digest, lines, size = hashlib.sha256(), 0, 0
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
                lines += block.count(b"\n")
    except FileNotFoundError:
        return f"{shard['name']}: missing"
    plain = path.suffix in (".txt", ".jsonl")
    same = (size, digest.hexdigest()) == (shard["bytes"], shard["sha256"]) and (not plain or lines == shard["lines"])
    return "" if same else f"{shard['name']}: not the bytes that were written"
