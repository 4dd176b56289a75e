"""Text shards: one document per line in `shard-00000.txt` and following files, with a `manifest.json` written last.

`data/text/escapes.py` defines the escaping of a document to a single line, `manifest.py` the manifest. The manifest
marks a folder as finished. Before that, all listed shards are complete and partial shards are in `.draft`. Repeating a
finished run keeps the old shards until all new shards are complete.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import DataError, InputError
from data.manifest import DRAFT, MANIFEST, list_shards, read_manifest, sync_path, write_manifest
from data.text.document_batch import TextList
from data.text.escapes import escape_all
from data.text.inputs import STDIN
from data.text.long_documents import Text
from store import untrusted_input


@dataclass(frozen=True)
class ShardFormat:
    """File format of a shard: `txt`, `jsonl` or `parquet`; compression `gzip`, `zstd` or none; number of threads."""

    format: str = "txt"
    compression: str = ""
    threads: int = 1

    @property
    def suffix(self) -> str:
        return f".{self.format}" + {"gzip": ".gz", "zstd": ".zst", "": ""}[self.compression]

    @property
    def is_packed(self) -> bool:
        return bool(self.compression) or self.format == "parquet"


@dataclass(frozen=True)
class ShardPosition:
    """Position of a Writer: the shards completed since the last cut, and the size of the open shard."""

    whole: list[dict[str, Any]]
    index: int
    """Index of the open shard."""
    lines: int
    bytes: int


class Writer:
    """Write lines into the shards of a folder.

    `cut` and `write` are quick. `publish` makes the shards of a cut visible and waits for the disk; it may run in a
    separate thread and returns a mark. A later Writer resumes from the mark, directly after the last line before the
    cut. `finish` writes the final manifest.
    """

    def __init__(
        self,
        folder: Path,
        lines_per_shard: int,
        form: ShardFormat = ShardFormat(),
        draft: Path | None = None,
        mark: Mapping[str, Any] | None = None,
    ):
        """Open the folder for a new run, or resume from `mark`.

        Raises InputError if `folder` holds shards not listed in a manifest, DataError if files required by the mark are
        missing or changed.
        """
        self.folder, self.lines_per_shard, self.form = folder, lines_per_shard, form
        self.draft = draft or folder / DRAFT
        self.shards: list[dict[str, Any]] = []
        self._completed: list[dict[str, Any]] = []
        self._packed_drafts: list[Path] = []
        self.num_bytes = 0
        """Bytes written by this Writer, without earlier runs."""
        self._index = self._lines = self._bytes = 0
        self._file: Any = None
        if mark is None:
            self._begin()
        else:
            self._resume(mark)

    def _begin(self) -> None:
        claimed = list_shards(self.folder) if (self.folder / MANIFEST).exists() else set()
        unclaimed = sorted(path for path in self.folder.glob("shard-*") if path.name not in claimed)
        if unclaimed and not self.draft.exists():
            raise InputError(
                f"{self.folder} holds {unclaimed[0].name}, but no manifest lists the file; choose an empty folder"
            )
        self.aside = bool(claimed) and read_manifest(self.folder, finished=False)["finished"] is True
        if claimed and not self.aside:
            what = f"{self.folder} holds {len(claimed)} shards of an unfinished run"
            if read_manifest(self.folder, finished=False)["source"] in STDIN:
                raise InputError(
                    f"{what}, and the input from stdin cannot be read again; remove the folder, or choose a "
                    "different folder"
                )
            what += ", with other options or a different source"
            raise InputError(
                f"{what}; run the command of the unfinished run again to continue, remove the folder, or choose a "
                "different folder"
            )
        for path in unclaimed:  # written by a run killed before it could list them
            path.unlink()
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)
        self.publish_folder.mkdir(parents=True, exist_ok=True)

    def _resume(self, mark: Mapping[str, Any]) -> None:
        """Restore the state of the mark, and remove data written later."""
        self.aside, self.shards = mark["aside"], list(mark["shards"])
        self._index = len(self.shards)
        self._lines, self._bytes = mark["lines"], mark["bytes"]
        for shard in self.shards:
            places = [self.publish_folder / shard["name"], self.folder / shard["name"]]
            if not any(path.is_file() and path.stat().st_size == shard["bytes"] for path in places):
                raise DataError(
                    f"{places[0]}: the file was changed since the last run; to start again, remove the folder"
                )
        draft = self._draft(self._index)
        late = self.publish_folder / f"shard-{self._index:05d}{self.form.suffix}"
        if self._lines and not self.form.is_packed and late.exists() and not draft.exists():
            os.replace(late, draft)
        if self._lines and not (draft.exists() and draft.stat().st_size >= self._bytes):
            raise DataError(f"{draft}: the file was changed since the last run; to start again, remove the folder")
        known = {shard["name"] for shard in self.shards}
        if (self.publish_folder / MANIFEST).exists() and list_shards(self.publish_folder) != known:
            (self.publish_folder / MANIFEST).unlink()
        for path in self.publish_folder.glob("shard-*"):
            if path.name not in known:
                path.unlink()
        if self._lines:
            os.truncate(draft, self._bytes)
            self._file = open(draft, "ab", buffering=0)  # noqa: SIM115 closed by _roll
            self._hash = hashlib.sha256()
            with open(draft, "rb") as file:
                while block := file.read(1 << 20):
                    self._hash.update(block)

    @property
    def publish_folder(self) -> Path:
        """Return the folder for published shards: a draft folder while an old finished set stays in place."""
        return self.draft / "next" if self.aside else self.folder

    def add(self, text: str) -> None:
        # An unpaired surrogate has no UTF-8 form.
        self.write(escape_all(TextList([text.encode("utf-8", "replace")])), 1)

    def write(self, blocks: Iterable[Text], lines: int) -> int:
        """Write `lines` whole lines, given as blocks with arbitrary borders; return the number of bytes written."""
        before = self.num_bytes
        if lines < self.lines_per_shard - self._lines:
            if lines:
                self._append(blocks, lines)
            return self.num_bytes - before
        for block in map(bytes, blocks):  # a block in this call completes a shard
            self._append_and_roll(block)
        return self.num_bytes - before

    @property
    def num_whole(self) -> int:
        """Return the number of complete shards, published or not."""
        return self._index

    @property
    def num_waiting(self) -> int:
        """Return the number of shards completed since the last cut."""
        return len(self._completed)

    def take_completed(self) -> ShardPosition:
        """Return the shards completed since the last cut, and the current position."""
        whole, self._completed = self._completed, []
        return ShardPosition(whole, self._index, self._lines, self._bytes)

    def publish(self, cut: ShardPosition, about: Mapping[str, Any]) -> dict[str, Any]:
        """Publish the shards of `cut`, list them in the manifest and return the mark, all after syncing to disk."""
        for one in cut.whole:
            index = len(self.shards)
            name, draft = f"shard-{index:05d}{self.form.suffix}", self._draft(index)
            if self.form.is_packed:
                from data.shards.encode import pack

                packed = self.draft / name
                one = {**one, **pack(draft, packed, self.form.format, self.form.compression, self.form.threads)}
                os.replace(packed, self.publish_folder / name)
                self._packed_drafts.append(draft)
            else:
                sync_path(draft)
                os.replace(draft, self.publish_folder / name)
            self.shards.append({"name": name, **one})
        if cut.whole:
            sync_path(self.publish_folder)
            write_manifest(self.publish_folder, self.shards, False, about)
        if cut.lines:
            sync_path(self._draft(cut.index))
        return {"shards": self.shards, "lines": cut.lines, "bytes": cut.bytes, "aside": self.aside}

    def remove_drafts(self) -> None:
        """Remove drafts of compressed shards; call after the mark is saved."""
        for path in self._packed_drafts:
            path.unlink(missing_ok=True)
        self._packed_drafts = []

    def close(self) -> None:
        """Complete the open shard, even if short."""
        if self._file is not None:
            self._roll()

    def finish(self, source: str, options: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the final manifest after all shards are on disk, and return the manifest.

        Replaces the shards of an earlier run.
        """
        about = {"source": source, "options": dict(options), **(more or {})}
        self.close()
        self.publish(self.take_completed(), about)
        manifest = write_manifest(self.publish_folder, self.shards, True, about)
        if self.aside:
            replace_shards(self.publish_folder, self.folder)
        if self.draft.parent == self.folder:
            shutil.rmtree(self.draft)
        return manifest

    def _draft(self, index: int) -> Path:
        return self.draft / f"{index:05d}"

    def _append(self, blocks: Iterable[Text], lines: int) -> None:
        if self._file is None:
            self._file = open(self._draft(self._index), "wb", buffering=0)  # noqa: SIM115 closed by _roll
            self._hash = hashlib.sha256()
        for block in blocks:
            self._hash.update(block)
            self._bytes += len(block)
            self.num_bytes += len(block)
            written = self._file.write(block)
            while written < len(block):
                written += self._file.write(memoryview(block)[written:])
        self._lines += lines

    def _append_and_roll(self, block: bytes) -> None:
        lines, start = block.count(b"\n"), 0
        while lines >= (room := self.lines_per_shard - self._lines):
            end = _end_of_line(block, start, room)
            self._append([block[start:end]], room)
            self._roll()
            start, lines = end, lines - room
        if start < len(block):
            self._append([block[start:]], lines)

    def _roll(self) -> None:
        self._file.close()
        sha256 = self._hash.hexdigest()
        one = {"lines": self._lines, "bytes": self._bytes, "raw_bytes": self._bytes, "sha256": sha256}
        self._completed.append(one)
        self._file, self._index, self._lines, self._bytes = None, self._index + 1, 0, 0


def replace_shards(new: Path, folder: Path) -> None:
    """Replace the shards listed in the manifest of `folder` with the finished shards of `new`; move the manifest last.

    Safe to call again after an interruption.
    """
    moved = {name for name in list_shards(new) if not (new / name).exists()}
    remove_shards(folder, moved)
    for path in sorted(new.glob("shard-*")):
        os.replace(path, folder / path.name)
    os.replace(new / MANIFEST, folder / MANIFEST)
    sync_path(folder)


def remove_shards(folder: Path, but: Set[str] = frozenset()) -> None:
    """Remove the manifest of `folder`, then the listed shards except those in `but`."""
    with suppress(DataError):  # no manifest, or a manifest of a different program: remove no files
        names = list_shards(folder)
        (folder / MANIFEST).unlink()
        for path in sorted({(folder / name).parent for name in names} - {folder}):  # shares of distributed ranks
            (path / MANIFEST).unlink(missing_ok=True)
        for name in names - but:
            (folder / name).unlink(missing_ok=True)
        for path in {(folder / name).parent for name in names} - {folder}:
            with suppress(OSError):  # the folder holds other files
                path.rmdir()


def _end_of_line(data: bytes, at: int, lines: int) -> int:
    """Return the offset after `lines` lines, counted from offset `at`."""
    for _ in range(lines):
        at = data.index(b"\n", at) + 1
    return at


def shard_paths(text: Path, part: str = "train", partial: bool = False) -> list[Path]:
    """Return the shards of a part of a text folder; a folder without parts is all `train`. Raises DataError.

    partial: accept an unfinished run, and return the complete shards.
    """
    return [path for path, _ in whole_shards(text, part, partial)]


def whole_shards(text: Path, part: str, partial: bool = False) -> list[tuple[Path, dict[str, Any]]]:
    """Return the shards as in `shard_paths`, each with its manifest entry. Raises DataError."""
    folder = text / part
    if not folder.is_dir():
        if part != "train" or (text / "val").is_dir():
            return []
        folder = text
    shards = read_manifest(folder, finished=not partial)["shards"]
    try:
        for shard in shards:
            untrusted_input.resolve_within(folder, shard["name"])
    except untrusted_input.UnusableDocument as error:
        raise DataError(str(error)) from None
    return [(folder / shard["name"], shard) for shard in shards]


def read(paths: list[Path]) -> Iterator[str]:
    """Yield the documents of the shards in order."""
    from data.text.batches import open_pieces
    from data.text.documents import InputFile

    for path in paths:
        pieces = open_pieces(InputFile(str(path)))
        for piece in range(pieces.count):
            for batch in pieces.read(piece):
                yield from (text.decode() for text in batch.texts)
