"""Text shards: one document per line in `shard-00000.txt`, ..., and a `manifest.json` that is written last.

So that a document is one line and nothing of it is lost, backslash, newline and carriage return are written as
`\\\\`, `\\n` and `\\r`. A folder is finished when it has a manifest; until then its shards lie in `.draft`.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import DataError, InputError

SCHEMA = 1
MANIFEST = "manifest.json"
ESCAPE = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
PLAIN = {written: character for character, written in ESCAPE.items()}


def escape(text: str) -> str:
    """`text` as one line."""
    return re.sub(r"[\\\n\r]", lambda found: ESCAPE[found[0]], text)


def unescape(line: str) -> str:
    """The text that `escape` made `line` of. Raises ValueError for a line that it cannot have made."""

    def plain(found: re.Match[str]) -> str:
        if found[0] not in PLAIN:
            raise ValueError(f"{found[0]!r} is no escape of ours")
        return PLAIN[found[0]]

    return re.sub(r"\\.?", plain, line, flags=re.DOTALL)


def in_val(text: str, ratio: float, seed: int) -> bool:
    """Whether a document is held out: a matter of its words and the seed, not of its place."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") < ratio * 2**64


class Writer:
    """Rolls documents into the shards of one folder; `finish` makes them appear, the manifest last."""

    def __init__(self, folder: Path, lines_per_shard: int):
        """Raises InputError when `folder` holds shards that no manifest of ours claims."""
        self.folder, self.lines_per_shard = folder, lines_per_shard
        self.draft = folder / ".draft"
        self.shards: list[dict[str, Any]] = []
        claimed = (
            {shard["name"] for shard in read_manifest(folder)["shards"]} if (folder / MANIFEST).exists() else set()
        )
        foreign = sorted(path.name for path in folder.glob("shard-*.txt") if path.name not in claimed)
        if foreign:
            raise InputError(f"{folder} holds {foreign[0]}, which no manifest lists; choose an empty folder")
        self.claimed = claimed
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)
        self._lines = 0
        self._file: Any = None

    def add(self, text: str) -> None:
        if self._file is None:
            self._file = open(self.draft / f"shard-{len(self.shards):05d}.txt", "wb")  # noqa: SIM115 closed by _roll
            self._hash, self._bytes = hashlib.sha256(), 0
        line = escape(text).encode("utf-8", "replace") + b"\n"  # half a surrogate pair has no UTF-8
        self._file.write(line)
        self._hash.update(line)
        self._bytes += len(line)
        self._lines += 1
        if self._lines == self.lines_per_shard:
            self._roll()

    def finish(self, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest, after it and all shards are on the disk. What an earlier run left is replaced."""
        self._roll()
        manifest = {
            "schema": SCHEMA,
            "finished": True,
            "source": source,
            "options": dict(options),
            "shards": self.shards,
            "total_lines": sum(shard["lines"] for shard in self.shards),
            "total_bytes": sum(shard["bytes"] for shard in self.shards),
        }
        draft = self.draft / MANIFEST
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            _sync(file)
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for name in self.claimed:
            (self.folder / name).unlink(missing_ok=True)
        for shard in self.shards:
            os.replace(self.draft / shard["name"], self.folder / shard["name"])
        os.replace(draft, self.folder / MANIFEST)
        self.draft.rmdir()
        return manifest

    def _roll(self) -> None:
        if self._file is None:
            return
        _sync(self._file)
        self._file.close()
        name = Path(self._file.name).name
        self.shards.append({"name": name, "lines": self._lines, "bytes": self._bytes, "sha256": self._hash.hexdigest()})
        self._file, self._lines = None, 0


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises DataError when the folder has no manifest, or one that is not ours."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA or manifest["finished"] is not True:
            raise DataError(f"{path}: not a finished manifest of schema {SCHEMA}")
        for shard in manifest["shards"]:
            if not re.fullmatch(r"shard-\d{5,}\.txt", shard["name"]):
                raise DataError(f"{path}: {shard['name']!r} is no name of a shard")
        return manifest
    except FileNotFoundError:
        raise DataError(f"{folder}: no {MANIFEST}; the shards were not finished") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a manifest of shards: {error!r}") from None


def verify(folder: Path) -> list[str]:
    """What is wrong with the shards of `folder`, in words; empty when every shard is what the manifest says."""
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [str(error)]
    problems = []
    names = {shard["name"] for shard in manifest["shards"]}
    problems += [f"{path.name}: not in the manifest" for path in folder.glob("shard-*.txt") if path.name not in names]
    for shard in manifest["shards"]:
        path = folder / shard["name"]
        if not path.is_file():
            problems.append(f"{path.name}: missing")
            continue
        digest, lines = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                lines += block.count(b"\n")
        if path.stat().st_size != shard["bytes"] or lines != shard["lines"] or digest.hexdigest() != shard["sha256"]:
            problems.append(f"{path.name}: not the bytes that were written")
    return problems


def shard_paths(text: Path, part: str = "train") -> list[Path]:
    """The shards of one part of a text folder; a folder without parts is all `train`. Raises DataError."""
    folder = text / part
    if not folder.is_dir():
        if part != "train" or (text / "val").is_dir():
            return []
        folder = text
    return [folder / shard["name"] for shard in read_manifest(folder)["shards"]]


def is_shard(path: Path) -> bool:
    """Whether the manifest beside `path` lists it, so that its lines are escaped."""
    if not (path.parent / MANIFEST).is_file():
        return False
    try:
        return path.name in {shard["name"] for shard in read_manifest(path.parent)["shards"]}
    except DataError:  # somebody else's manifest.json: then it is somebody else's text
        return False


def read(paths: list[Path]) -> Iterator[str]:
    """The documents of these shards, one after another."""
    for path in paths:
        with open(path, encoding="utf-8", newline="\n") as file:
            for line in file:
                yield unescape(line.removesuffix("\n"))
