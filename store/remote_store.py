"""Artifacts in a place on another machine: the same names and manifests, no renames and no locks.

Where many files change at once (a hub: one commit), an artifact is replaced as a whole. Where they do not (a bucket),
its manifest goes first, then its files change, each read back, and its new manifest comes last, on the condition that
nobody else has put one there meanwhile. Either way, what has no manifest that verifies is no artifact. What is read is
named by a pinned revision where there is one, and by sha256 always.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from store import outside
from store.manifest import (
    MANIFEST,
    Artifact,
    FileEntry,
    Manifest,
    NoStore,
    StoreError,
    check_name,
    is_hidden,
    is_manifest,
    name_at,
    places,
    sources_of,
)
from store.mirror import Mirror
from store.patience import clean
from store.seam import Entry, Place

THREADS = 8
RUNS = "runs/"  # what runs at work leave there is no artifact


class RemoteStore:
    def __init__(self, place: Place) -> None:
        self.place, self.uri = place, place.uri

    def publish(self, folder: Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool) -> None:
        """Raises StoreError; then what was there is still there, or missing where the place is not atomic."""
        sources = sources_of(folder, check_name(name), flat)
        where, other = places(name)[flat], places(name)[not flat]
        try:
            entries = tuple(self._entry(folder / path, path) for path in sources)
            there = self.place.listing()
            _refuse_overlap(self.uri, name, flat, other, there)
            before = self._files_of(where, there)
            manifest = Manifest(name, fingerprint, about, entries, time(), flat)
            new = {manifest.place(path): folder / path for path in sources}
            gone = [path for path in before if path not in new]
            seen = there[where].version if where in there else ""
            if self.place.is_atomic:
                self._put_at_once(new, gone, where, manifest, seen)
            else:
                manifest = self._put_one_by_one(new, gone, where, manifest, there)
            Mirror(self.uri).seed(folder, manifest)
        except OSError as error:
            raise StoreError(f"publishing {name} to {self.uri}: {error}") from error

    def check_writable(self) -> None:
        """Raises NoStore when files may not be written there, StoreError when it does not say."""
        try:
            self.place.check_writable()
        except FileNotFoundError as error:  # a branch that is not there, as the hub says it
            raise NoStore(f"nothing can be written to the store {self.uri}: {error}") from None
        except StoreError:
            raise
        except Exception as error:  # what else fsspec speaks raises whatever its drivers do
            raise NoStore(f"nothing can be written to the store {self.uri}: {clean(error)}") from None

    def artifacts(self) -> list[Artifact]:
        at = self.place.pin()
        there = self.place.listing(at=at)
        manifests = [path for path in there if is_manifest(path) and not is_hidden(path) and not path.startswith(RUNS)]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda path: self._verified(path, there, at, deep=False), sorted(manifests)))

    def check(self, name: str, deep: bool = False) -> Artifact:
        check_name(name)
        at = self.place.pin()
        there = self.place.listing(at=at)
        for manifest in places(name):
            if manifest in there:
                return self._verified(manifest, there, at, deep)
        return Artifact(name, "", "it is missing")

    def path(self, name: str, fingerprint: str) -> Path:
        at = self.place.pin()
        there = self.place.listing(at=at)
        where = next((one for one in places(check_name(name)) if one in there), "")
        found = self._verified(where, there, at, deep=False) if where else Artifact(name, "", "it is missing")
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        if found.fingerprint != fingerprint:
            seen = f"its fingerprint is {found.fingerprint}, wanted is {fingerprint}"
            raise StoreError(f"{name} in {self.uri}: {seen}: another launch has replaced it; launch again")
        return Mirror(self.uri).bring(self._read(where, at), self.place, at, there)

    def manifest(self, name: str) -> Manifest:
        at = self.place.pin()
        for where in places(check_name(name)):
            try:
                return self._read(where, at)
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise StoreError(f"{name} in {self.uri}: {error}") from None
        raise StoreError(f"{name} in {self.uri}: it is missing")

    # Writing.

    def _entry(self, source: Path, path: str) -> FileEntry:
        digest = hashlib.sha256()
        with source.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return FileEntry(path, source.stat().st_size, digest.hexdigest(), self.place.version_of(source))

    def _files_of(self, where: str, there: Mapping[str, Entry]) -> list[str]:
        """What the artifact that is there now consists of; a damaged manifest names no file that could be removed."""
        if where not in there:
            return []
        try:
            manifest = self._read(where, "")
        except ValueError:
            return []
        return [manifest.place(entry.path) for entry in manifest.files]

    def _put_at_once(self, new: Mapping[str, Path], gone: list[str], where: str, manifest: Manifest, seen: str) -> None:
        guard = (where, seen) if self.place.compares_and_sets else None
        self.place.put({**new, where: manifest.to_json().encode()}, gone, guard)
        at = self.place.pin()
        for entry in manifest.files:
            if not self._reads_back(manifest, entry, at):
                self.place.put({}, [where])
                raise StoreError(f"{self.uri}: {manifest.place(entry.path)} reads back otherwise; publish it again")

    def _put_one_by_one(
        self, new: Mapping[str, Path], gone: list[str], where: str, manifest: Manifest, there: Mapping[str, Entry]
    ) -> Manifest:
        """The manifest as it is there: with the version of each file."""
        due = []
        for entry, (path, source) in zip(manifest.files, new.items(), strict=True):
            is_there = path in there and there[path].size == entry.size
            if not (is_there and self._reads_back(manifest, entry, "")):  # of an upload that was cut off, or unchanged
                due.append((entry, path, source))
        if where in there:  # first of all: from now on it is not what its manifest says
            self.place.put({}, [where])
        for entry, path, source in due:
            self.place.put({path: source})
            if not self._reads_back(manifest, entry, ""):
                self.place.put({}, [path])
                raise StoreError(f"{self.uri}: {path} reads back otherwise than it was written; nothing was published")
        now = self.place.listing()
        files = tuple(replace(entry, version=now[manifest.place(entry.path)].version) for entry in manifest.files)
        manifest = replace(manifest, files=files)
        guard = (where, "") if self.place.compares_and_sets else None
        self.place.put({where: manifest.to_json().encode()}, gone, guard)
        return manifest

    def _reads_back(self, manifest: Manifest, entry: FileEntry, at: str) -> bool:
        try:
            return self.place.sha256(manifest.place(entry.path), at) == entry.sha256
        except FileNotFoundError:
            return False

    # Reading.

    def _verified(self, where: str, there: Mapping[str, Entry], at: str, deep: bool) -> Artifact:
        name = name_at(where)
        try:
            manifest = self._read(where, at)
            if places(manifest.name)[manifest.flat] != where:
                raise ValueError(f"its manifest is that of {manifest.name}")
        except (ValueError, FileNotFoundError) as error:
            return Artifact(outside.printable(name), "", str(error))
        problems = [self._problem(manifest, entry, there, at, deep) for entry in manifest.files]
        known = {manifest.place(entry.path) for entry in manifest.files} | {where}
        if not manifest.flat:
            extra = [path for path in there if path.startswith(f"{name}/") and path not in known]
            problems += [f"{outside.printable(path)} is not in its manifest" for path in extra if not is_hidden(path)]
        wrong = [problem for problem in problems if problem]
        return Artifact(name, manifest.fingerprint, "; ".join(wrong[:3]), manifest.about)

    def _problem(self, manifest: Manifest, file: FileEntry, there: Mapping[str, Entry], at: str, deep: bool) -> str:
        path = manifest.place(file.path)
        entry = there.get(path)
        if entry is None:
            return f"{path} is missing"
        if entry.size != file.size:
            return f"{path} has {entry.size} bytes, its manifest says {file.size}"
        is_other = entry.sha256 != file.sha256 if entry.sha256 else file.version and entry.version != file.version
        if is_other or (deep and not self._reads_back(manifest, file, at)):
            return f"{path} is not what was published (its sha256 differs)"
        return ""

    def _read(self, where: str, at: str) -> Manifest:
        """Raises FileNotFoundError, ValueError."""
        return Manifest.from_json(self.place.small(where, at))


def _refuse_overlap(uri: str, name: str, flat: bool, other: str, there: Mapping[str, Entry]) -> None:
    """An artifact inside another would be replaced with it."""
    parts = name.split("/")
    clash = [other] if other in there else []
    if not flat:
        above = [f"{'/'.join(parts[:depth])}/{MANIFEST}" for depth in range(1, len(parts))]
        inside = [path for path in there if path.startswith(f"{name}/") and is_manifest(path) and not is_hidden(path)]
        clash += [path for path in (*above, *inside) if path in there and path != f"{name}/{MANIFEST}"]
    if clash:
        raise StoreError(f"{name} in {uri}: {clash[0]} is there, and one would hold the other")
