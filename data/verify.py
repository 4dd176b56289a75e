"""Verify the text or token shards of a folder against the manifest."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.manifest import MANIFEST, PARTIAL, read_manifest
from data.tokens.token_file import is_intact, is_token_folder, read_header, read_token_manifest, token_files


def verify(folder: Path, partial: bool = False) -> list[str]:
    """Return descriptions of all problems in a shard folder; [] if every shard matches the manifest.

    Reads all shards, several at a time. partial: accept an unfinished run, and verify the listed shards.
    """
    if is_token_folder(folder):
        return _verify_tokens(folder)
    try:
        manifest = read_manifest(folder, finished=False)
    except DataError as error:
        return [str(error)]
    problems, names = [], {shard["name"] for shard in manifest["shards"]}
    if not manifest["finished"]:
        problems = [] if partial else [f"{MANIFEST}: not finished; to continue, run the same command again; {PARTIAL}"]
    if manifest["finished"] or not partial:  # in an unfinished run, a shard may exist before it is listed
        spare = (path.name for path in sorted(folder.glob("shard-*")) if path.name not in names)
        problems += [f"{name}: not in the manifest" for name in spare]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return problems + [one for one in pool.map(lambda shard: _problem(folder, shard), manifest["shards"]) if one]


def _verify_tokens(folder: Path) -> list[str]:
    try:
        manifest = read_token_manifest(folder)
    except DataError as error:
        return [str(error)]
    names = {one["name"] for one in manifest["shards"]}
    spare = (path.name for path in token_files(folder) if path.name not in names)
    problems = [f"{name}: not in the manifest" for name in spare]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tokenizer = manifest["tokenizer_sha256"]
        found = pool.map(lambda one: _token_problem(folder, one, tokenizer), manifest["shards"])
        return problems + [one for one in found if one]


def _token_problem(folder: Path, about: dict[str, Any], tokenizer_sha256: str) -> str:
    if not (folder / about["name"]).exists():
        return f"{about['name']}: missing"
    try:
        header = read_header(folder / about["name"], tokenizer_sha256)
    except DataError as error:
        return str(error).removeprefix(f"{folder}/")
    same = header.sha256 == about["sha256"] and is_intact(folder / about["name"], header)
    return "" if same else f"{about['name']}: the bytes differ from the written file"


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
    return "" if same else f"{shard['name']}: the bytes differ from the written file"
