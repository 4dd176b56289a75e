"""The folder of an active run in the store, so that it outlives its pod: `<store>/runs/<run>/`, named as on the pod.

    work/checkpoints/<folder>/step-<digits>/   its files, then MANIFEST.json: it is there when that is
    work/runs/<phase>/metrics.jsonl            metrics
    work/runs/<phase>/samples.jsonl            what the model said
    state/marks/<step>.json                    steps that are done
    state/acknowledged.json                    checkpoints that were read back, and when
    state/ending.json                          how the last pod of the run ended
    logs/*                                     logs; in the store they are in `<store>/logs/<run>/`, beside those of
                                               other runs

One pod writes here at a time. Nothing that is read is trusted: names, manifests and hashes are checked.
"""

import contextlib
import hashlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from store import local_files, outside
from store.backends.backend import PART_BYTES, ListedFile, NotSmall, Source
from store.backends.by_uri import open_place
from store.manifest import FileEntry, StoreError, check_name, entry_of
from store.untrusted_names import CHECKPOINT, is_inside

MANIFEST = "MANIFEST.json"
ACKNOWLEDGED = "state/acknowledged.json"
ENDING = "state/ending.json"
_STEP = re.compile(r"step-[0-9]{1,18}")


class Damaged(StoreError):
    """A checkpoint, here or in the store, is not what its manifest says."""


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint as its manifest describes it."""

    raw: bytes
    phase: str
    step: int
    files: tuple[FileEntry, ...]

    @staticmethod
    def parse(raw: bytes, folder: str) -> "ListedCheckpoint":
        """Return the checkpoint that a manifest describes; `folder` is its name, `step-...`.

        Raises Damaged when it is no manifest of that step with harmless paths.
        """
        try:
            said = outside.mapping(raw)
            files = tuple(entry_of(file) for file in outside.typed(said, "files", list))
            phase, step = outside.typed(said, "phase", str, ""), outside.typed(said, "step", int)
            metrics = outside.typed(said, "metrics", dict, {})
            for key in metrics:
                outside.typed(metrics, key, float)
        except ValueError as error:
            raise Damaged(f"its manifest cannot be read ({error})") from None
        paths = {file.path for file in files}
        if not paths or MANIFEST in paths or len(paths) != len(files):
            raise Damaged("its manifest lists no file, one twice, or itself")
        if not _STEP.fullmatch(folder) or step != step_of(folder):
            raise Damaged(f"its manifest is of step {step}")
        return ListedCheckpoint(raw, phase, step, files)

    @staticmethod
    def of(folder: Path) -> "ListedCheckpoint":
        """Return the checkpoint in a folder of this machine. Raises FileNotFoundError when it is gone, Damaged."""
        try:
            return ListedCheckpoint.parse(outside.content(folder / MANIFEST), folder.name)
        except outside.Unreadable as error:
            raise Damaged(f"its manifest cannot be read ({error})") from None


def step_of(name: str) -> int:
    """Return the step of a checkpoint's name."""
    return int(name.rpartition("-")[2])


def by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the checkpoints among these files that have a manifest, newest first, by the folder that holds them."""
    found: dict[str, list[str]] = {}
    for name in names:
        checkpoint, _, last = name.rpartition("/")
        match = CHECKPOINT.fullmatch(checkpoint)
        if match and last == MANIFEST:
            found.setdefault(match[1], []).append(checkpoint)
    return {folder: sorted(one, key=step_of, reverse=True) for folder, one in sorted(found.items())}


class RunFolder:
    """The folder of one run in a store. Every method may raise StoreError, and OSError where the store is a folder."""

    def __init__(self, store: str, run: str) -> None:
        self.uri, self._root, self._logs = str(store), f"runs/{check_name(run)}", f"logs/{check_name(run)}"
        self._place = open_place(self.uri)

    def names(self) -> dict[str, int]:
        """Return the size in bytes of every file, by name; {} where the run has left nothing."""
        found = {path.removeprefix(f"{self._root}/"): one.size for path, one in self._listing().items()}
        for path, one in self._place.listing(self._logs).items():
            found[f"logs/{path.removeprefix(f'{self._logs}/')}"] = one.size
        return {name: size for name, size in found.items() if is_inside(name) and not _is_draft(name)}

    def read(self, name: str) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError, StoreError when it is not small."""
        return self._place.small(self._at(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file that may be large, as it is now."""
        at = self._place.pin()
        yield from self._place.pieces(self._at(name), at)

    def put(self, files: Mapping[str, Iterable[bytes]]) -> None:
        """Replace each of these files, whole, by these bytes; where it can, the store changes all of them at once.

        Raises StoreError when one reads back otherwise.
        """
        with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
            new, digests = {}, {}
            for number, (name, pieces) in enumerate(files.items()):
                new[self._at(name)], digests[name] = spool(pieces, Path(folder, str(number)))
            self._place.put(new)
        at = self._place.pin()
        for name, digest in digests.items():
            if self._place.sha256(self._at(name), at) != digest:
                raise StoreError(f"{self.uri}: {self._at(name)} reads back otherwise than it was written")

    def put_checkpoint(self, folder: Path, name: str) -> None:
        """Bring a checkpoint of this machine there: seen when all of it was read back, or not at all.

        One that is there and whole stays as it is. Raises Damaged when the one here is, FileNotFoundError when it has
        been tidied away meanwhile.
        """
        checkpoint, manifest = ListedCheckpoint.of(folder), self._at(f"{name}/{MANIFEST}")
        if manifest in self._listing():
            if not self.problem(name):
                return
            self._place.put({}, [manifest])  # first of all, since nobody may see a checkpoint that does not verify
        check_files(folder)
        files = {self._at(f"{name}/{file.path}"): folder / file.path for file in checkpoint.files}
        if self._place.is_atomic:
            self._place.put({**files, manifest: checkpoint.raw})
            if problem := self.problem(name):
                self._place.put({}, [manifest])
                raise StoreError(f"{self.uri}: {name}: {problem}: it reads back otherwise than it was written")
            return
        for file, (target, source) in zip(checkpoint.files, files.items(), strict=True):
            if self._is_there(target, file):
                continue  # an interrupted upload
            self._place.put({target: source})
            if not self._is_there(target, file):
                self._place.put({}, [target])
                raise StoreError(f"{self.uri}: {target} reads back otherwise than it was written")
        self.put({f"{name}/{MANIFEST}": [checkpoint.raw]})
        listed = self._listing()
        for file in checkpoint.files:
            if (path := self._at(f"{name}/{file.path}")) not in listed or listed[path].size != file.size:
                self._place.put({}, [manifest])
                raise StoreError(f"{self.uri}: {name}: {file.path} is not listed with its {file.size} bytes")

    def get_checkpoint(self, name: str, folder: Path, told: Callable[[int, int], object]) -> ListedCheckpoint:
        """Bring a checkpoint here, whole or not at all. Raises Damaged. `told`: bytes so far, and in all."""
        at = self._place.pin()
        checkpoint = self._manifest(name, at)
        total, done = sum(file.size for file in checkpoint.files), 0
        folder.parent.mkdir(parents=True, exist_ok=True)
        # if this process dies here, a trainer removes it
        draft = folder.parent / f".tmp-{folder.name}-{uuid.uuid4().hex[:8]}"
        try:
            for file in checkpoint.files:
                path = draft / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError), path.open("wb") as copy:
                    for piece in self._place.pieces(self._at(f"{name}/{file.path}"), at):
                        copy.write(piece)
                        told(done + copy.tell(), total)
                _check(path, file)
                local_files.sync(str(path))
                done += file.size
            draft.mkdir(exist_ok=True)
            local_files.replace(draft / MANIFEST, checkpoint.raw)
            draft.rename(folder)
            local_files.sync(str(folder.parent))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)  # the first error is the one to report
            raise
        return checkpoint

    def problem(self, name: str) -> str:
        """Return the fault in a checkpoint there, in words; "" when every byte is as its manifest says."""
        at = self._place.pin()
        try:
            for file in self._manifest(name, at).files:
                if not self._is_there(self._at(f"{name}/{file.path}"), file, at):
                    return f"{file.path} is not what its manifest says"
        except Damaged as error:
            return str(error)
        return ""

    def manifest(self, name: str) -> ListedCheckpoint:
        """Return a checkpoint by its manifest; nothing is verified. Raises Damaged."""
        return self._manifest(name, "")

    def remove_checkpoint(self, name: str) -> None:
        """Remove a checkpoint, the manifest first, so that what an interruption leaves is not seen."""
        files = [path for path in self._listing() if path.startswith(f"{self._at(name)}/")]
        manifest = self._at(f"{name}/{MANIFEST}")
        self._place.put({}, sorted(files, key=lambda path: path != manifest))

    def acknowledged(self) -> dict[str, float]:
        """Return the checkpoints that were read back, and when. Raises StoreError when the list is damaged."""
        try:
            known = outside.mapping(self.read(ACKNOWLEDGED))
            return {name: outside.typed(known, name, float) for name in known if CHECKPOINT.fullmatch(name)}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StoreError(f"{self._at(ACKNOWLEDGED)} cannot be read ({error}); remove it to do without") from None

    def _at(self, name: str) -> str:
        log = name.removeprefix("logs/")
        return f"{self._root}/{name}" if log == name else f"{self._logs}/{log}"

    def _listing(self) -> dict[str, ListedFile]:
        return self._place.listing(self._root)

    def _manifest(self, name: str, at: str) -> ListedCheckpoint:
        try:
            raw = self._place.small(self._at(f"{name}/{MANIFEST}"), at)
        except FileNotFoundError:
            raise Damaged("it has no manifest") from None
        except NotSmall as error:
            raise Damaged(str(error)) from None
        return ListedCheckpoint.parse(raw, name.rpartition("/")[2])

    def _is_there(self, path: str, file: FileEntry, at: str = "") -> bool:
        """Return whether the store has that very content, every byte of it read."""
        try:
            return self._place.sha256(path, at) == file.sha256
        except FileNotFoundError:
            return False


def spool(pieces: Iterable[bytes], path: Path) -> tuple[Source, str]:
    """Return the bytes and their sha256, kept in memory or, when there are many, in a file."""
    digest, held, size = hashlib.sha256(), [], 0
    for piece in pieces:
        digest.update(piece)
        held.append(piece)
        size += len(piece)
        if size > PART_BYTES:
            with path.open("ab") as file:
                file.writelines(held)
            held, size = [], PART_BYTES
    if not path.exists():
        return b"".join(held), digest.hexdigest()
    with path.open("ab") as file:
        file.writelines(held)
    return path, digest.hexdigest()


def check_files(folder: Path) -> ListedCheckpoint:
    """Return a checkpoint of this machine, every byte read. Raises Damaged, FileNotFoundError."""
    checkpoint = ListedCheckpoint.of(folder)
    for file in checkpoint.files:
        try:
            _check(outside.within(folder, file.path), file)
        except (outside.Unreadable, PermissionError) as error:
            raise Damaged(str(error)) from None
    return checkpoint


def _check(path: Path, file: FileEntry) -> None:
    """Raise Damaged unless the file of this machine is the one that a manifest lists."""
    if not path.is_file():
        raise Damaged(f"{file.path} is missing")
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    if path.stat().st_size != file.size:
        raise Damaged(f"{file.path} has {path.stat().st_size} bytes instead of {file.size}")
    if digest.hexdigest() != file.sha256:
        raise Damaged(f"{file.path} has other content than was written")


def _is_draft(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")
