"""The catalogue of all checkpoints in a store or in folders of runs: in active runs and in published artifacts.

The functions take the URI of a store, or local folders, and return `FoundCheckpoint` records from listings and
manifests. `problem` verifies every byte of a checkpoint. The store is never modified.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from store import untrusted_input
from store.artifacts import vocabulary
from store.artifacts.artifacts import Store
from store.backends.backend import Backend, ListedFile, open_place
from store.manifest import STAGE_NAME, StoreError
from store.run_sync.run_folder import MANIFEST, DamagedCheckpoint, ListedCheckpoint, RunFolder, check_files, step_of
from store.untrusted_input import CHECKPOINT

_OF_A_RUN = re.compile(rf"runs/([A-Za-z0-9._-]+)/({CHECKPOINT.pattern})")
_FINAL = re.compile(rf"([A-Za-z0-9._-]+_checkpoints/[A-Za-z0-9._-]+|{STAGE_NAME.pattern})/step-[0-9]{{1,18}}")
_HERE = re.compile(r"(?!\.)[^/]+/step-[0-9]{1,18}")


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint and its location."""

    name: str
    """Name on the command line: `<run>/<folder>/step-<digits>`, or the name of the artifact."""
    kind: str
    """`final` (published), `run` (saved in the store by a run) or `here` (on this machine)."""
    uri: str
    path: str
    """Path of the checkpoint folder relative to `uri`."""
    num_bytes: int
    manifest: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    """Reason why the manifest is unusable."""

    @property
    def step(self) -> int:
        return step_of(self.path)

    @property
    def saved_at(self) -> str:
        """Return the ISO time in UTC at which the checkpoint was saved, or "" if not recorded."""
        return str(self.manifest.get("timestamp", ""))


def stored_checkpoints(uri: str) -> list[FoundCheckpoint]:
    """Return the checkpoints in a store, sorted by name and step. Raise StoreError."""
    place = open_place(uri)
    at = place.current_revision()
    there = place.listing(at=at)
    return sorted(_found(place, uri, at, there), key=lambda one: (one.name, one.step))


def _found(place: Backend, uri: str, at: str, there: dict[str, ListedFile]) -> Iterator[FoundCheckpoint]:
    for path in there:
        folder, _, last = path.rpartition("/")
        if last != MANIFEST:
            continue
        if of_a_run := _OF_A_RUN.fullmatch(folder):
            name, kind = f"{of_a_run[1]}/{of_a_run[2].removeprefix('work/checkpoints/')}", "run"
        elif final := _FINAL.fullmatch(folder):
            name, kind = final[1], "final"
        else:
            continue
        size = sum(entry.size for one, entry in there.items() if one.startswith(f"{folder}/"))
        yield _read(name, kind, uri, folder, size, partial(place.read_small, path, at))


def local_checkpoints(folders: dict[str, Path]) -> list[FoundCheckpoint]:
    """Return the checkpoints on this machine; `folders` maps a name, such as a run name, to a folder."""
    found = []
    for name, folder in folders.items():
        for manifest in sorted(folder.glob(f"*/step-*/{MANIFEST}")):
            path = manifest.parent
            relative = f"{path.parent.name}/{path.name}"
            if _HERE.fullmatch(relative):
                size = sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
                read = partial(untrusted_input.content, manifest)
                found.append(_read(f"{name}/{relative}", "here", str(folder), relative, size, read))
    return found


def _read(name: str, kind: str, uri: str, path: str, num_bytes: int, read: Callable[[], bytes]) -> FoundCheckpoint:
    """Return the record of a checkpoint; a damaged or removed checkpoint gets `trouble` instead of an error."""
    try:
        raw = read()
        ListedCheckpoint.parse(raw, path.rpartition("/")[2])
        return FoundCheckpoint(name, kind, uri, path, num_bytes, untrusted_input.mapping(raw))
    except (DamagedCheckpoint, OSError, ValueError) as error:
        return FoundCheckpoint(name, kind, uri, path, num_bytes, {}, str(error))


def problem(one: FoundCheckpoint) -> str:
    """Return the problem of a checkpoint, or "" if every byte, read in place, matches the manifest."""
    if one.kind == "final":
        found = Store(one.uri).check(one.name, deep=True)
        return found.problem or vocabulary.problem(_reader(one), found.about)
    if one.kind == "run":
        run, name = _of_run(one)
        return RunFolder(one.uri, run).problem(name)
    try:
        check_files(Path(one.uri, one.path))
    except (DamagedCheckpoint, FileNotFoundError) as error:
        return str(error)
    return ""


def _reader(one: FoundCheckpoint) -> vocabulary.Read:
    """Return a reader of the model files in a published checkpoint."""
    place = open_place(one.uri)
    return lambda name: b"".join(place.read_chunks(f"{one.name}/{vocabulary.HF}/{name}"))


def download(one: FoundCheckpoint, folder: Path) -> None:
    """Download and verify the files of a checkpoint into the new folder `folder`. Raise StoreError."""
    if one.kind == "run":
        run, name = _of_run(one)
        RunFolder(one.uri, run).get_checkpoint(name, folder, lambda done, total: None)
        return
    raise StoreError(f"{one.name} is on this machine already: {Path(one.uri, one.path)}")


def _of_run(one: FoundCheckpoint) -> tuple[str, str]:
    """Return the run and the name of the checkpoint within the run folder."""
    match = _OF_A_RUN.fullmatch(one.path)
    assert match is not None, one
    return match[1], match[2]
