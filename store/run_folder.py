"""What a run at work keeps in the store, so that it outlives its pod: `<store>/runs/<run>/`, named as on the pod.

    work/checkpoints/<folder>/step-<digits>/   its files, then MANIFEST.json: it is there when that is
    work/runs/<phase>/metrics.jsonl            figures
    state/marks/<step>.json                    steps that are done
    state/acknowledged.json                    checkpoints that were read back, and when
    state/ending.json                          how the last pod of the run ended
    logs/*                                     logs

One pod writes here at a time. Nothing that is read is believed: names, manifests and hashes are checked.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store import local
from store.files import Files, chunks
from store.manifest import FileEntry, StoreError, check_name, is_harmless

MANIFEST = "MANIFEST.json"
ACKNOWLEDGED = "state/acknowledged.json"
ENDING = "state/ending.json"
CHECKPOINT = re.compile(r"(work/checkpoints/(?!\.)[A-Za-z0-9._-]{1,128})/step-([0-9]{1,18})")
LOG = re.compile(r"logs/(?!\.)[A-Za-z0-9._-]{1,128}\.(log|times)")
SMALL_BYTES = 16 << 20  # no manifest, mark or list of ours is larger
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Damaged(StoreError):
    """A checkpoint, here or in the store, is not what its manifest says."""


@dataclass(frozen=True)
class Checkpoint:
    """What a manifest says of its checkpoint."""

    raw: bytes
    phase: str
    step: int
    files: tuple[FileEntry, ...]

    @staticmethod
    def parse(raw: bytes, folder: str) -> "Checkpoint":
        """`folder`: the name `step-...`. Raises Damaged when it is no manifest of that step with harmless paths."""
        try:
            said = json.loads(raw)
            files = tuple(FileEntry(file["path"], file["size"], file["sha256"]) for file in said["files"])
            phase, step = str(said.get("phase", "")), said["step"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"its manifest cannot be read ({error!r})") from None
        for file in files:
            is_known = type(file.size) is int and isinstance(file.sha256, str) and _SHA256.fullmatch(file.sha256)
            if not is_known or not isinstance(file.path, str) or not is_harmless(file.path) or file.path == MANIFEST:
                raise Damaged(f"its manifest has an entry {file}")
        if type(step) is not int or step != int(folder.removeprefix("step-")):
            raise Damaged(f"its manifest is of step {step}")
        return Checkpoint(raw, phase, step, files)

    @staticmethod
    def of(folder: Path) -> "Checkpoint":
        """Of a folder of this machine. Raises FileNotFoundError when it is gone, Damaged."""
        return Checkpoint.parse((folder / MANIFEST).read_bytes(), folder.name)


def step_of(name: str) -> int:
    """Of a checkpoint's name."""
    return int(name.rpartition("-")[2])


def by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    """The checkpoints among these files that have a manifest, newest first, by the folder that holds them."""
    found: dict[str, list[str]] = {}
    for name in names:
        checkpoint, _, last = name.rpartition("/")
        match = CHECKPOINT.fullmatch(checkpoint)
        if match and last == MANIFEST:
            found.setdefault(match[1], []).append(checkpoint)
    return {folder: sorted(one, key=step_of, reverse=True) for folder, one in sorted(found.items())}


class RunFolder(Files):
    """The folder of one run in a store. Every method may raise StoreError, and whatever the store's client raises."""

    def __init__(self, store: str, run: str) -> None:
        super().__init__(store)
        self._root = f"{self._root}/runs/{check_name(run)}"

    def names(self) -> dict[str, int]:
        """Size in bytes of every file, by name; {} where the run has left nothing."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._root, detail=True)
        sizes = {path.removeprefix(f"{self._root}/"): int(info["size"]) for path, info in found.items()}
        return {name: size for name, size in sizes.items() if is_harmless(name) and not _is_draft(name)}

    def read(self, name: str) -> bytes:
        """Of a small file. Raises FileNotFoundError, StoreError when it is not small."""
        self._fs.invalidate_cache()
        size = self._fs.info(self._at(name))["size"]
        if size > SMALL_BYTES:
            raise StoreError(f"{self._at(name)} has {size} bytes, which is more than it can have")
        return bytes(self._fs.cat_file(self._at(name)))

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._fs.open(self._at(name), "rb") as file:
            yield from chunks(file, hashlib.sha256())

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Replace a file, whole, by these bytes. Raises StoreError when it reads back otherwise."""
        target = self._at(name)
        folder, _, last = target.rpartition("/")
        self._make(folder)
        draft = f"{folder}/.{last}.draft" if self._is_local else target
        digest = hashlib.sha256()
        try:
            self._write(draft, _seen(pieces, digest))
            if self._sha256(draft) != digest.hexdigest():
                raise StoreError(f"{target} reads back otherwise than it was written")
            if self._is_local:
                os.replace(draft, target)
                local.sync(folder)
        except BaseException:
            if self._is_local:  # the first error is the one to report; an object that is not whole is written again
                self._discard(draft)
            raise

    def put_checkpoint(self, folder: Path, name: str) -> None:
        """Bring a checkpoint of this machine there: seen when all of it was read back, or not at all.

        One that is there and whole stays as it is. Raises Damaged when the one here is, FileNotFoundError when it has
        been tidied away meanwhile.
        """
        checkpoint = Checkpoint.of(folder)
        if f"{name}/{MANIFEST}" in self.names():
            if not self.problem(name):
                return
            self._fs.rm(self._at(f"{name}/{MANIFEST}"))  # first of all: what does not verify must not be seen
        for file in checkpoint.files:
            self._put_file(folder / file.path, f"{name}/{file.path}", file)
        if self._is_local:
            local.sync(self._at(name))
        self.put(f"{name}/{MANIFEST}", [checkpoint.raw])
        sizes = self.names()
        for file in checkpoint.files:
            if sizes.get(f"{name}/{file.path}") != file.size:
                self._fs.rm(self._at(f"{name}/{MANIFEST}"))
                raise StoreError(f"{self._at(name)}: {file.path} is not listed with its {file.size} bytes")

    def get_checkpoint(self, name: str, folder: Path, told: Callable[[int, int], object]) -> Checkpoint:
        """Bring a checkpoint here, whole or not at all. Raises Damaged. `told`: bytes so far, and in all."""
        checkpoint = self._manifest(name)
        total, done = sum(file.size for file in checkpoint.files), 0
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.parent / f".tmp-{folder.name}-{uuid.uuid4().hex[:8]}"  # a trainer sweeps it, should we die here
        try:
            for file in checkpoint.files:
                path = draft / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    self._fs.get_file(self._at(f"{name}/{file.path}"), str(path))
                _check(path, file)
                local.sync(str(path))
                done += file.size
                told(done, total)
            draft.mkdir(exist_ok=True)
            local.replace(draft / MANIFEST, checkpoint.raw)
            draft.rename(folder)
            local.sync(str(folder.parent))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)  # the first error is the one to report
            raise
        return checkpoint

    def problem(self, name: str) -> str:
        """What is wrong with a checkpoint there, in words; "" when every byte is as its manifest says."""
        try:
            for file in self._manifest(name).files:
                if not self._is_there(f"{name}/{file.path}", file):
                    return f"{file.path} is not what its manifest says"
        except Damaged as error:
            return str(error)
        return ""

    def remove_checkpoint(self, name: str) -> None:
        """The manifest first, so that what is left of one that is cut off is not seen."""
        place = self._at(name)
        if self._fs.exists(f"{place}/{MANIFEST}"):
            self._fs.rm(f"{place}/{MANIFEST}")
        if self._fs.exists(place):
            self._fs.rm(place, recursive=True)

    def acknowledged(self) -> dict[str, float]:
        """Checkpoints that were read back, and when. Raises StoreError when the list is damaged."""
        try:
            known = json.loads(self.read(ACKNOWLEDGED))
            return {name: float(at) for name, at in known.items() if CHECKPOINT.fullmatch(name)}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._at(ACKNOWLEDGED)} cannot be read ({error}); remove it to do without") from None

    def _manifest(self, name: str) -> Checkpoint:
        try:
            return Checkpoint.parse(self.read(f"{name}/{MANIFEST}"), name.rpartition("/")[2])
        except FileNotFoundError:
            raise Damaged("it has no manifest") from None

    def _put_file(self, source: Path, name: str, file: FileEntry) -> None:
        """Copy, and read back. What cannot be finished is taken away again: it may be what fills the disk."""
        if self._is_there(name, file):
            return  # of an upload that was cut off
        _check(source, file)
        target = self._at(name)
        self._make(target.rpartition("/")[0])
        try:
            self._fs.put_file(str(source), target)
            if self._is_local:
                local.sync(target)
            if not self._is_there(name, file):
                raise StoreError(f"{target} reads back otherwise than it was written")
        except BaseException:
            self._discard(target)
            raise

    def _is_there(self, name: str, file: FileEntry) -> bool:
        self._fs.invalidate_cache()
        try:
            return self._fs.info(self._at(name))["size"] == file.size and self._sha256(self._at(name)) == file.sha256
        except FileNotFoundError:
            return False

    def _make(self, folder: str) -> None:
        self._fs.makedirs(folder, exist_ok=True)
        self._refuse_links(folder)

    def _discard(self, path: str) -> None:
        with contextlib.suppress(Exception):  # the store may be away; the first error is the one to report
            self._fs.rm(path)


def _check(path: Path, file: FileEntry) -> None:
    """Raises Damaged unless the file of this machine is the one that a manifest lists."""
    if not path.is_file():
        raise Damaged(f"{file.path} is missing")
    digest = hashlib.sha256()
    with path.open("rb") as content:
        for _ in chunks(content, digest):
            pass
    if path.stat().st_size != file.size:
        raise Damaged(f"{file.path} has {path.stat().st_size} bytes instead of {file.size}")
    if digest.hexdigest() != file.sha256:
        raise Damaged(f"{file.path} has other content than was written")


def _seen(pieces: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _is_draft(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")
