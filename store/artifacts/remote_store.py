"""The artifact store on a remote backend: the same names and manifests as in a folder, without renames and locks.

An atomic backend (a hub: one commit) replaces an artifact as a whole. On other backends (a bucket) a writer removes the
manifest, changes the files and reads each file back, then writes the new manifest, conditional on the absence of a
manifest from a concurrent writer. A folder without a valid manifest is not an artifact. Readers use a pinned revision
if the backend has revisions, and always check sha256.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from store import untrusted_input
from store.artifacts.local_copies import Mirror
from store.backends.backend import Backend, Copy, ListedFile
from store.manifest import (
    MANIFEST,
    MISSING,
    Artifact,
    FileEntry,
    Manifest,
    NoStore,
    StoreError,
    check_name,
    choose,
    is_hidden,
    is_kept,
    is_manifest,
    kept_name,
    name_at,
    places,
    sources_of,
)
from store.patience import Conflict, clean

THREADS = 8
RUNS = "runs/"  # files of active runs, not artifacts


class RemoteStore:
    def __init__(self, place: Backend) -> None:
        self.place, self.uri = place, place.uri

    def publish(self, folder: Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool) -> None:
        """Store the files of `folder` under `fingerprint`, then point `name` to the artifact. Raise StoreError."""
        sources = sources_of(folder, check_name(name), flat)
        kept = kept_name(name, fingerprint)
        try:
            there = self.place.listing()
            _refuse_overlap(self.uri, name, flat, there)
            if self._check(kept, there).problem:
                manifest = self._write(folder, sources, Manifest(kept, fingerprint, about, (), time()), there)
                Mirror(self.uri).seed(folder, manifest)
            self.point_name(name, fingerprint, flat)
        except OSError as error:
            raise StoreError(f"publishing {name} to {self.uri}: {error}") from error

    def write_note(self, folder: Path, name: str, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Publish the files of `folder` directly under `name`.

        Raise StoreError on failure; the old files then remain, or are missing on a backend that is not atomic.
        """
        sources = sources_of(folder, check_name(name), flat=False)
        try:
            there = self.place.listing()
            _refuse_overlap(self.uri, name, False, there)
            self._write(folder, sources, Manifest(name, fingerprint, about, (), time()), there)
        except OSError as error:
            raise StoreError(f"writing {name} to {self.uri}: {error}") from error

    def _write(self, folder: Path, sources: list[str], manifest: Manifest, there: Mapping[str, ListedFile]) -> Manifest:
        where = places(manifest.name)[0]
        manifest = replace(manifest, files=tuple(self._entry(folder / path, path) for path in sources))
        new = {manifest.place(path): folder / path for path in sources}
        gone = [path for path in self._files_of(where, there) if path not in new]
        seen = there[where].version if where in there else ""
        if not self.place.is_atomic:
            return self._put_one_by_one(new, gone, where, manifest, there)
        self._put_atomically(new, gone, where, manifest, seen)
        return manifest

    def point_name(self, name: str, fingerprint: str, flat: bool) -> None:
        """Point `name` to the artifact with this fingerprint by copying the files within the backend.

        Raise StoreError if the artifact does not exist. After an error the name is unchanged, or missing on a backend
        that is not atomic.
        """
        where = places(check_name(name))[flat]
        there = self.place.listing()
        _refuse_overlap(self.uri, name, flat, there)
        try:
            kept, before = self._fingerprint_manifest(name, fingerprint, there), self._check(name, there)
            if not before.problem and before.fingerprint == fingerprint:
                return
            self._copy(kept, replace(kept, name=name, flat=flat), where, there)
        except (OSError, ValueError) as error:
            raise StoreError(f"{name} in {self.uri}: {error}") from error

    def _fingerprint_manifest(self, name: str, fingerprint: str, there: Mapping[str, ListedFile]) -> Manifest:
        """Return the manifest under the fingerprint name of an artifact. Raise StoreError."""
        kept = kept_name(name, fingerprint)
        if places(kept)[0] not in there:
            there = self.place.listing()
        found, lies = self._find(name, fingerprint, there, "")
        if found.problem or lies != kept:
            raise StoreError(f"{name} in {self.uri}: {found.problem or MISSING}")
        return self._read(places(kept)[0], "")

    def _copy(self, source: Manifest, target: Manifest, where: str, there: Mapping[str, ListedFile]) -> Manifest:
        """Copy an artifact within the backend, the manifest last, and return the manifest of the copy."""
        now = self.place.listing()
        old = {entry.path: source.place(entry.path) for entry in source.files}
        if lost := [one for one in old.values() if one not in now]:
            raise StoreError(f"{source.name} in {self.uri}: {lost[0]} is missing")
        new = {target.place(path): Copy(one, now[one].size, now[one].version) for path, one in old.items()}
        gone = [path for path in self._files_of(where, there) if path not in new]
        seen = there[where].version if where in there else ""
        if self.place.is_atomic:
            guard = (where, seen) if self.place.compares_and_sets else None
            self.place.put({**new, where: target.to_json().encode()}, gone, guard)
            return target
        if where in there:
            self.place.put({}, [where])
        self.place.put(new)
        now = self.place.listing()  # list before reading the bytes: a later change shows as a different version
        for entry in target.files:
            if target.place(entry.path) not in now or not self._verify_upload(target, entry, ""):
                raise Conflict(
                    f"{target.name} in {self.uri}: a different writer has changed the artifact meanwhile; try again"
                )
        target = replace(
            target, files=tuple(replace(entry, version=now[target.place(entry.path)].version) for entry in target.files)
        )
        guard = (where, "") if self.place.compares_and_sets else None
        self.place.put({where: target.to_json().encode()}, gone, guard)
        return target

    def remove(self, kept: str) -> None:
        """Remove an artifact, given the fingerprint name; delete the manifest first. Raise StoreError."""
        assert is_kept(kept), kept
        there = self.place.listing(kept)
        manifest = places(kept)[0]
        if manifest in there:
            self.place.put({}, [manifest])
        self.place.put({}, [path for path in there if path != manifest])

    def check_writable(self) -> None:
        """Raise NoStore if the backend refuses writes, and StoreError if the check itself cannot run."""
        try:
            self.place.check_writable()
        except FileNotFoundError as error:  # the hub reports a missing branch as a missing file
            raise NoStore(f"the store {self.uri} is not writable: {error}") from None
        except StoreError:
            raise
        except Exception as error:  # fsspec drivers raise errors of any type
            raise NoStore(f"the store {self.uri} is not writable: {clean(error)}") from None

    def artifacts(self) -> list[Artifact]:
        at = self.place.current_revision()
        there = self.place.listing(at=at)
        manifests = [path for path in there if is_manifest(path) and not is_hidden(path) and not path.startswith(RUNS)]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda path: self._verified(path, there, at, deep=False), sorted(manifests)))

    def check(self, name: str, deep: bool = False) -> Artifact:
        at = self.place.current_revision()
        return self._check(check_name(name), self.place.listing(at=at), at, deep)

    def _check(self, name: str, there: Mapping[str, ListedFile], at: str = "", deep: bool = False) -> Artifact:
        for manifest in places(name):
            if manifest in there:
                return self._verified(manifest, there, at, deep)
        return Artifact(name, "", MISSING)

    def find(self, name: str, fingerprint: str) -> tuple[Artifact, str]:
        """Return the artifact with this fingerprint and the name of the folder in the store; see `choose`."""
        at = self.place.current_revision()
        return self._find(name, fingerprint, self.place.listing(at=at), at)

    def _find(self, name: str, fingerprint: str, there: Mapping[str, ListedFile], at: str) -> tuple[Artifact, str]:
        return choose(name, fingerprint, lambda one: self._check(one, there, at))

    def path(self, name: str, fingerprint: str) -> Path:
        at = self.place.current_revision()
        there = self.place.listing(at=at)
        found, lies = self._find(name, fingerprint, there, at)
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        where = next(one for one in places(lies) if one in there)
        return Mirror(self.uri).ensure_local(self._read(where, at), self.place, at, there)

    def manifest(self, name: str) -> Manifest:
        at = self.place.current_revision()
        for where in places(check_name(name)):
            try:
                return self._read(where, at)
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise StoreError(f"{name} in {self.uri}: {error}") from None
        raise StoreError(f"{name} in {self.uri}: {MISSING}")

    # Writing.

    def _entry(self, source: Path, path: str) -> FileEntry:
        digest = hashlib.sha256()
        with source.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return FileEntry(path, source.stat().st_size, digest.hexdigest(), self.place.version_of(source))

    def _files_of(self, where: str, there: Mapping[str, ListedFile]) -> list[str]:
        """Return the paths of the files of the present artifact; [] without a readable manifest."""
        if where not in there:
            return []
        try:
            manifest = self._read(where, "")
        except ValueError:
            return []
        return [manifest.place(entry.path) for entry in manifest.files]

    def _put_atomically(
        self, new: Mapping[str, Path], gone: list[str], where: str, manifest: Manifest, seen: str
    ) -> None:
        guard = (where, seen) if self.place.compares_and_sets else None
        self.place.put({**new, where: manifest.to_json().encode()}, gone, guard)
        at = self.place.current_revision()
        for entry in manifest.files:
            if not self._verify_upload(manifest, entry, at):
                self.place.put({}, [where])
                raise StoreError(
                    f"{self.uri}: {manifest.place(entry.path)} reads back with other bytes; publish the artifact again"
                )

    def _put_one_by_one(
        self, new: Mapping[str, Path], gone: list[str], where: str, manifest: Manifest, there: Mapping[str, ListedFile]
    ) -> Manifest:
        """Upload the files one by one, then the manifest; return the manifest with the backend version of each file."""
        due = []
        for entry, (path, source) in zip(manifest.files, new.items(), strict=True):
            is_there = path in there and there[path].size == entry.size
            # Skip unchanged files and files from an interrupted upload.
            if not (is_there and self._verify_upload(manifest, entry, "")):
                due.append((entry, path, source))
        if where in there:  # delete first: from here on the files differ from the old manifest
            self.place.put({}, [where])
        for entry, path, source in due:
            self.place.put({path: source})
            if not self._verify_upload(manifest, entry, ""):
                self.place.put({}, [path])
                raise StoreError(
                    f"{self.uri}: {path} reads back with other bytes than were written; nothing was published"
                )
        now = self.place.listing()
        files = tuple(replace(entry, version=now[manifest.place(entry.path)].version) for entry in manifest.files)
        manifest = replace(manifest, files=files)
        guard = (where, "") if self.place.compares_and_sets else None
        self.place.put({where: manifest.to_json().encode()}, gone, guard)
        return manifest

    def _verify_upload(self, manifest: Manifest, entry: FileEntry, at: str) -> bool:
        try:
            return self.place.sha256(manifest.place(entry.path), at) == entry.sha256
        except FileNotFoundError:
            return False

    # Reading.

    def _verified(self, where: str, there: Mapping[str, ListedFile], at: str, deep: bool) -> Artifact:
        name = name_at(where)
        try:
            manifest = self._read(where, at)
            if places(manifest.name)[manifest.flat] != where:
                raise ValueError(f"the manifest belongs to {manifest.name}")
        except (ValueError, FileNotFoundError) as error:
            return Artifact(untrusted_input.printable(name), "", str(error))
        problems = [self._problem(manifest, entry, there, at, deep) for entry in manifest.files]
        known = {manifest.place(entry.path) for entry in manifest.files} | {where}
        if not manifest.flat:
            extra = [path for path in there if path.startswith(f"{name}/") and path not in known]
            problems += [
                f"{untrusted_input.printable(path)} is not in the manifest" for path in extra if not is_hidden(path)
            ]
        wrong = [problem for problem in problems if problem]
        return manifest.artifact("; ".join(wrong[:3]))

    def _problem(
        self, manifest: Manifest, file: FileEntry, there: Mapping[str, ListedFile], at: str, deep: bool
    ) -> str:
        path = manifest.place(file.path)
        entry = there.get(path)
        if entry is None:
            return f"{path} is missing"
        if entry.size != file.size:
            return f"{path} has {entry.size} bytes, but {file.size} bytes in the manifest"
        is_other = entry.sha256 != file.sha256 if entry.sha256 else file.version and entry.version != file.version
        if is_other or (deep and not self._verify_upload(manifest, file, at)):
            return f"{path} has changed since the publication (other sha256)"
        return ""

    def _read(self, where: str, at: str) -> Manifest:
        """Return the manifest in the file `where`. Raise FileNotFoundError or ValueError."""
        return Manifest.from_json(self.place.read_small(where, at))


def _refuse_overlap(uri: str, name: str, flat: bool, there: Mapping[str, ListedFile]) -> None:
    """Raise StoreError if two artifacts would be nested: replacing the outer artifact would remove the inner one."""
    parts, other = name.split("/"), places(name)[not flat]
    clash = [other] if other in there else []
    if not flat:
        above = [f"{'/'.join(parts[:depth])}/{MANIFEST}" for depth in range(1, len(parts))]
        inside = [path for path in there if path.startswith(f"{name}/") and is_manifest(path) and not is_hidden(path)]
        clash += [path for path in (*above, *inside) if path in there and path != f"{name}/{MANIFEST}"]
    if clash:
        raise StoreError(
            f"{name} in {uri}: {clash[0]} exists already, and an artifact cannot lie inside of a second artifact"
        )
