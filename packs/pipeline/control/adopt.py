"""Publication of an experiment's own shards and tokenizer as store artifacts that the training reads.

The fingerprint of each artifact is a hash of its content. Shards are hard-linked rather than copied because they may
fill the volume; every byte is read and compared with the sharder's manifest (decision 24).
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


def publish_text(space: Workspace) -> str:
    """Publish the shards as `datasets/<experiment>/text` and return the fingerprint.

    Raise SlipwayError if the shards differ from the manifest.
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
    shutil.rmtree(draft, ignore_errors=True)  # leftovers of a killed run
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


def publish_tokenizer(space: Workspace, digest: str) -> str:
    """Publish a copy of the tokenizer as `tokenizer` and return the fingerprint."""
    fingerprint = digest[:12]
    if not is_there(space, "tokenizer", fingerprint):
        Store(space.store).publish(space.tokenizer, "tokenizer", fingerprint, {"tokenizer_sha256": digest})
    return fingerprint


def is_there(space: Workspace, name: str, fingerprint: str) -> bool:
    return not Store(space.store).find(name, fingerprint).problem


def link(source: Path, target: Path) -> None:
    """Create a hard link to a shard, or copy the shard on a file system without hard links.

    Links are safe because shards are replaced as whole files and never modified.
    """
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def entry(folder: Path, path: str) -> FileEntry:
    digest, size = sha256(), 0
    with open(folder / path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return FileEntry(path, size, digest.hexdigest())
