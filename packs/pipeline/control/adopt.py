"""An experiment's own shards and tokenizer as artifacts of the store that its training reads.

In: a `Workspace` whose shards and tokenizer are finished. Out: each artifact's fingerprint, which is of its content.
The shards are linked and not copied, since they may fill the volume; every byte is read and compared with what the
sharder has written down (decision 24).
"""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

from data.manifest import MANIFEST, read_manifest
from data.verify import verify
from infra.errors import SlipwayError
from packs.pipeline.control.workspace import Workspace, manifest
from store.artifacts.artifacts import Store
from store.artifacts.folder_store import FolderStore
from store.manifest import FileEntry, Manifest
from trainer.plan import source_slug


def text(space: Workspace) -> str:
    """Keep the shards as `datasets/<experiment>/text`, and return their fingerprint.

    Raises SlipwayError when they are not what was written.
    """
    parts = {part: folder for part, folder in (("train", space.train), ("val", space.val)) if manifest(folder)}
    listed = {part: [one["sha256"] for one in read_manifest(folder)["shards"]] for part, folder in parts.items()}
    fingerprint = sha256(repr(sorted(listed.items())).encode()).hexdigest()[:12]
    name = f"datasets/{source_slug(str(space.train))}/text"
    if is_there(space, name, fingerprint):
        return fingerprint
    for folder in parts.values():
        if problems := verify(folder):
            raise SlipwayError(f"{folder}: {'; '.join(problems)}; make the shards again: RUN_SHARD=1")
    draft = space.run / ".text"
    shutil.rmtree(draft, ignore_errors=True)  # leftovers of a run that was killed
    files = []
    for part, folder in parts.items():
        (draft / part).mkdir(parents=True)
        for file in (MANIFEST, *(one["name"] for one in read_manifest(folder)["shards"])):
            link(folder / file, draft / part / file)
            files.append(f"{part}/{file}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = tuple(pool.map(partial(entry, draft), files))
    FolderStore(str(space.store)).adopt(draft, Manifest(name, fingerprint, {"brought": True}, entries, time.time()))
    return fingerprint


def tokenizer(space: Workspace, digest: str) -> str:
    """Keep a copy of the tokenizer as `tokenizer`, and return its fingerprint."""
    fingerprint = digest[:12]
    if not is_there(space, "tokenizer", fingerprint):
        Store(space.store).publish(space.tokenizer, "tokenizer", fingerprint, {"tokenizer_sha256": digest})
    return fingerprint


def is_there(space: Workspace, name: str, fingerprint: str) -> bool:
    return not Store(space.store).find(name, fingerprint).problem


def link(source: Path, target: Path) -> None:
    """Link a shard, or copy it: it is replaced as a whole and never written into, so the link stays what it is."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def entry(folder: Path, path: str) -> FileEntry:
    digest, size = sha256(), 0
    with open(folder / path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return FileEntry(path, size, digest.hexdigest())
