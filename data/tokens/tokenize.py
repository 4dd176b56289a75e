"""Text shards -> token shards: one `.arrow` file per text shard, and `manifest.json` written last.

`token_file.py` defines the file format; files are named `train-00000.arrow` and so on. Each process tokenizes one text
shard at a time; a file depends only on its text shard and the tokenizer. A stopped run resumes: an existing file is
complete, and its header identifies text and tokenizer.
"""

import hashlib
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data import processors
from data.config import ConfigError
from data.errors import DataError
from data.events import emit
from data.manifest import MANIFEST, TOOL, read_manifest, shard_folders, sync, sync_path, write_json
from data.process_pool import run_tasks
from data.shards.shards import read, whole_shards
from data.tokens.stream import DTYPES, STARTS
from data.tokens.token_file import BODY, KIND, SCHEMA, SUFFIX, Header, read_header, token_files
from data.tokens.tokenizer import Tokenizer, load

BATCH = 512
WORTH_A_PROCESS = 16 << 20  # bytes of text per process; starting a process takes as long as tokenizing a few megabytes
TELL_EVERY_S = 0.3


NO_SOURCE = bytes(32).hex()


class TokenWriter:
    """Write a token file as a draft in the target folder, renamed at the end.

    The draft has the process id in its name, so that a process briefly outliving its parent does no harm. Memory: eight
    bytes per document.
    """

    def __init__(self, target: Path, tokenizer: Tokenizer, source_sha256: str = NO_SOURCE):
        size = tokenizer.vocab_size
        width = 2 if size <= 1 << 16 else 4
        self.header = Header(width, size, tokenizer.separator, 0, 0, tokenizer.sha256, source_sha256)
        self.target, self.draft = target, target.with_name(f".{target.name}.{os.getpid()}.draft")
        self.file = open(self.draft, "wb")  # noqa: SIM115 closed by finish
        self.file.write(bytes(BODY))
        self.digest = hashlib.sha256()
        self.starts = array("Q", [0])

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    @property
    def num_documents(self) -> int:
        return len(self.starts) - 1

    def add(self, documents: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Append the ids of several documents, given without <|bos|>."""
        ends = np.cumsum([1 + len(one) for one in documents])
        ids = np.empty(ends[-1] if len(ends) else 0, DTYPES[self.header.width])
        start = 0
        for document, end in zip(documents, ends.tolist(), strict=True):
            ids[start] = self.header.bos
            ids[start + 1 : end] = document
            start = end
        self._write(ids.data)
        self.starts.extend((ends + self.num_tokens).tolist())

    def finish(self) -> None:
        """Write header and index, and publish the file after syncing to disk."""
        header = replace(self.header, num_tokens=self.num_tokens, num_documents=self.num_documents)
        self._write(bytes(header.padding))
        self._write(np.array(self.starts, STARTS).data)
        self.digest.update(header.fields)
        self.file.seek(0)
        self.file.write(replace(header, sha256=self.digest.hexdigest()).head)
        # `store.local_files` writes from start to end, but the header is written after all tokens are counted.
        sync(self.file)
        self.file.close()
        os.replace(self.draft, self.target)
        sync_path(self.target.parent)

    def _write(self, data: Any) -> None:
        self.digest.update(data)
        self.file.write(data)


@dataclass(frozen=True)
class TokenizeTask:
    """A text shard and its token file."""

    text: Path
    source_sha256: str
    num_bytes: int
    target: Path

    def __str__(self) -> str:
        return str(self.text)


def make(text: Path, tokenizer_folder: Path, folder: Path, workers: int = 0, partial: bool = False) -> dict[str, Any]:
    """Write the token shards of `text` into `folder`; return token and document counts.

    workers: number of processes; 0: one per CPU core. partial: accept an unfinished text folder, and use the complete
    shards. Raises DataError, ConfigError.
    """
    if workers < 0:
        raise ConfigError(f"workers is {workers}; it must be at least 0 (0 = one per CPU core)")
    tokenizer = load(tokenizer_folder)
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [task for part in ("train", "val") for task in _tasks(text, part, folder, partial)]
    due = [task for task in tasks if not _is_made(task, tokenizer.sha256)]
    if due:
        (folder / MANIFEST).unlink(missing_ok=True)
        processes = processors.count_usable()
        worth = 1 + sum(task.num_bytes for task in due) // WORTH_A_PROCESS
        _make_all(due, tokenizer_folder, min(workers or processes, len(due), worth), processes)
    names = {task.target.name for task in tasks}
    for path in (*token_files(folder), *folder.glob(".*-[0-9]*.draft")):
        if path.name not in names:  # left by a killed run or a run with more text
            path.unlink()
    shards = [_about(task.target, tokenizer.sha256) for task in tasks]
    about: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "tokenizer_sha256": tokenizer.sha256}
    for part in ("train", "val"):
        ours = [one for one in shards if one["name"].startswith(part)]
        about[f"{part}_tokens"] = sum(one["tokens"] for one in ours)
        about[f"{part}_documents"] = sum(one["documents"] for one in ours)
    named = {"kind": KIND, "schema": SCHEMA, "tool": TOOL, "text": _origin(text)}
    write_json(folder / MANIFEST, {**named, **about, "shards": shards})
    return about


def _origin(text: Path) -> dict[str, Any]:
    """Return the origin in the manifest of the text shards, for the card."""
    manifest = read_manifest(shard_folders(text)[0], finished=False)
    return {name: manifest.get(name, {}) for name in ("source", "options", "input")}


def write(paths: Sequence[Path], tokenizer: Tokenizer, target: Path, most: float = math.inf) -> tuple[int, int]:
    """Tokenize text shards into a single file; return (tokens, documents).

    most: leave out the documents after more than this many tokens.
    """
    made = TokenWriter(target, tokenizer)
    for _, tokens in _fill(made, paths, tokenizer):
        if tokens > most:
            break
    made.finish()
    return made.num_tokens, made.num_documents


def _tasks(text: Path, part: str, folder: Path, partial: bool) -> Iterator[TokenizeTask]:
    for number, (path, about) in enumerate(whole_shards(text, part, partial)):
        yield TokenizeTask(path, about["sha256"], about["raw_bytes"], folder / f"{part}-{number:05d}{SUFFIX}")


def _is_made(task: TokenizeTask, tokenizer_sha256: str) -> bool:
    with suppress(DataError):
        return read_header(task.target, tokenizer_sha256).source_sha256 == task.source_sha256
    return False


def _about(path: Path, tokenizer_sha256: str) -> dict[str, Any]:
    one = read_header(path, tokenizer_sha256)
    about = {"name": path.name, "tokens": one.num_tokens, "documents": one.num_documents, "bytes": one.num_bytes}
    return {**about, "sha256": one.sha256, "source_sha256": one.source_sha256}


def _fill(made: TokenWriter, paths: Sequence[Path], tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """Add the documents of the shards; yield the total (documents, tokens) after each batch."""
    texts = read(list(paths))
    while batch := list(islice(texts, BATCH)):
        made.add(tokenizer.encode_batch(batch))
        yield made.num_documents, made.num_tokens


def _made(task: TokenizeTask, tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    made = TokenWriter(task.target, tokenizer, task.source_sha256)
    yield from _fill(made, [task.text], tokenizer)
    made.finish()


def _work(tokenizer_folder: Path, threads: int) -> Callable[[TokenizeTask], Iterator[tuple[int, int]]]:
    """Return the function applied to each task by a worker process."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    tokenizer = load(tokenizer_folder)
    return lambda task: _made(task, tokenizer)


class TokenizeProgress:
    """Progress of all text shards, reported every TELL_EVERY_S seconds."""

    def __init__(self) -> None:
        self.of: dict[TokenizeTask, tuple[int, int]] = {}
        self.at = 0.0

    def update(self, task: TokenizeTask, so_far: tuple[int, int]) -> None:
        self.of[task] = so_far
        if time.monotonic() - self.at >= TELL_EVERY_S:
            self.report()

    def report(self) -> None:
        self.at = time.monotonic()
        documents, tokens = (sum(one[at] for one in self.of.values()) for at in (0, 1))
        emit("progress", done=documents, unit="documents", tokens=tokens)


def _make_all(tasks: Sequence[TokenizeTask], tokenizer_folder: Path, workers: int, processors: int) -> None:
    told = TokenizeProgress()
    if workers == 1:
        tokenizer = load(tokenizer_folder)
        for task in tasks:
            for so_far in _made(task, tokenizer):
                told.update(task, so_far)
    else:
        largest_first = sorted(tasks, key=lambda task: -task.num_bytes)  # so that all processes end together
        run_tasks(largest_first, partial(_work, tokenizer_folder, max(1, processors // workers)), workers, told.update)
    told.report()
