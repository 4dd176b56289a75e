"""Publishing, finding and verifying artifacts, over fsspec.

    <store>/<name>/...  and  <store>/<name>/ARTIFACT.json       an artifact
    <store>/...         and  <store>/<name>.artifact.json       a flat one: its files lie at the root

An artifact is copied into `.tmp-<uuid>` beside its place, read back, given its manifest, and swapped in. What a
dead writer left is swept: finished when it was whole and its place is empty, removed otherwise.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from store import local
from store.files import Files, chunks
from store.manifest import (
    FLAT_MANIFEST,
    MANIFEST,
    Artifact,
    FileEntry,
    Manifest,
    NoStore,
    StoreError,
    check_name,
    places,
)

_LEFTOVER = re.compile(r"(?:.*/)?\.(?:tmp|trash)-[0-9a-f]{32}")


class Store(Files):
    """Artifacts under one fsspec URI or folder."""

    def publish(
        self, folder: str | Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool = False
    ) -> None:
        """Copy the files of `folder` under `name`, in place of what was there, once they were read back.

        flat: the files (no subfolders) lie at the store's root, beside the manifest `<name>.artifact.json`.
        Of two publishers of one name the last wins, whole. Raises StoreError; what was there is then still there.
        """
        sources = _sources(Path(folder), name, flat)
        try:
            with self._staging(check_name(name)) as staging, _pool() as pool:
                files = tuple(pool.map(lambda path: self._copy(Path(folder, path), path, staging), sources))
                manifest = Manifest(name, fingerprint, about, files, time.time(), flat)
                self._write(f"{staging}/{MANIFEST}", [manifest.to_json().encode()])
                self._sync(staging)
                with self._locked(exclusive=True):
                    self._swap(staging, manifest)
        except OSError as error:
            raise StoreError(f"publishing {name} to {self.uri}: {error}") from error

    def check_writable(self) -> None:
        """Raises NoStore when no file can be written where the store is, or will be. Leaves nothing behind.

        A store on another machine is not asked.
        """
        if not self._is_local:
            return
        folder = Path(self._root)
        while not os.path.lexists(folder):
            folder = folder.parent
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"x")
        except OSError as error:
            raise NoStore(f"nothing can be written to the store {self.uri}: {error}; give another: --store") from None

    def artifacts(self) -> list[Artifact]:
        """Every artifact, by name, each verified by size and sha256."""
        if self._leftovers() and os.access(self._root, os.W_OK):
            self._sweep()
        with self._locked(exclusive=False):
            paths = self._find(self._root)
            manifests = [path for path in paths if _is_manifest(path) and not _is_hidden(path)]
            return self._verify(manifests, paths)

    def check(self, name: str) -> Artifact:
        """The artifact of that name, verified; `problem` says when it is missing or damaged."""
        check_name(name)
        with self._locked(exclusive=False):
            for manifest in places(name):
                if self._fs.exists(self._at(manifest)):
                    return self._verify([manifest], self._find(self._at(name)))[0]
        return Artifact(name, "", "it is missing")

    def path(self, name: str, fingerprint: str) -> Path:
        """The folder with the files of that artifact, verified just now.

        Raises StoreError when it is missing, damaged, has another fingerprint, or lies on another machine.
        """
        found = self.check(name)
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        if found.fingerprint != fingerprint:
            seen = f"its fingerprint is {found.fingerprint}, wanted is {fingerprint}"
            raise StoreError(f"{name} in {self.uri}: {seen}: another launch has replaced it; launch again")
        if not self._is_local:
            raise StoreError(f"{name} in {self.uri}: it is not in a folder of this machine")
        return Path(self._at(name)) if self._fs.exists(self._at(f"{name}/{MANIFEST}")) else Path(self._root)

    def manifest(self, name: str) -> Manifest:
        """What is written down about that artifact; nothing is verified. Raises StoreError when there is none."""
        for place in places(check_name(name)):
            if self._fs.exists(self._at(place)):
                try:
                    return self._read(self._at(place))
                except ValueError as error:
                    raise StoreError(f"{name} in {self.uri}: {error}") from None
        raise StoreError(f"{name} in {self.uri}: it is missing")

    # Writing.

    @contextlib.contextmanager
    def _staging(self, name: str) -> Iterator[str]:
        """A new folder beside the place of `name`, claimed for as long as this lasts, removed at its end."""
        parent = self._at(name).rpartition("/")[0]
        staging = f"{parent}/.tmp-{uuid.uuid4().hex}"
        self._refuse_links(parent)
        if self._leftovers():
            self._sweep()
        with self._locked(exclusive=True):  # a sweeper sees the folder only once it is claimed
            self._fs.makedirs(staging)
            claim = local.claim(staging) if self._is_local else None
        try:
            yield staging
        finally:
            if self._fs.exists(staging):
                self._fs.rm(staging, recursive=True)
            if claim is not None:
                os.close(claim)

    def _copy(self, source: Path, path: str, staging: str) -> FileEntry:
        target = f"{staging}/{path}"
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        digest = hashlib.sha256()
        with open(source, "rb") as file:
            size = self._write(target, chunks(file, digest))
        if self._sha256(target) != digest.hexdigest():
            raise StoreError(f"{target} reads back otherwise than it was written; nothing was published")
        return FileEntry(path, size, digest.hexdigest())

    def _swap(self, staging: str, manifest: Manifest) -> None:
        """Put the staged artifact in its place. The lock is held."""
        self._refuse_overlap(manifest)
        place = self._at(manifest.name)
        if self._is_local and not manifest.flat:
            # Only what carries our manifest is ours to remove.
            kind = "trash" if os.path.exists(f"{place}/{MANIFEST}") else "aside"
            old = f"{place.rpartition('/')[0]}/.{kind}-{uuid.uuid4().hex}"
            if os.path.lexists(place):
                os.rename(place, old)
            os.rename(staging, place)
            self._sync_parents(manifest.name)
            if kind == "trash":
                self._fs.rm(old, recursive=True)
        else:
            base = self._root if manifest.flat else place
            current = f"{place}{FLAT_MANIFEST}" if manifest.flat else f"{place}/{MANIFEST}"
            before: set[str] = set()
            if self._fs.exists(current):
                with contextlib.suppress(ValueError):  # a damaged manifest names no file that could be removed
                    before = {entry.path for entry in self._read(current).files}
                self._fs.rm(current)
            for entry in manifest.files:
                if self._fs.exists(f"{staging}/{entry.path}"):  # else moved already, by a writer that died here
                    self._fs.makedirs(f"{base}/{entry.path}".rpartition("/")[0], exist_ok=True)
                    self._fs.mv(f"{staging}/{entry.path}", f"{base}/{entry.path}")
            self._fs.mv(f"{staging}/{MANIFEST}", current)
            for path in before - {entry.path for entry in manifest.files}:
                if self._fs.exists(f"{base}/{path}"):
                    self._fs.rm(f"{base}/{path}")
            self._sync_parents(manifest.name)

    def _refuse_overlap(self, manifest: Manifest) -> None:
        """An artifact inside another would be swapped away with it."""
        name, parts = manifest.name, manifest.name.split("/")
        if manifest.flat:
            others = [f"{name}/{MANIFEST}"]
        else:
            others = [f"{'/'.join(parts[:depth])}/{MANIFEST}" for depth in range(1, len(parts))]
            others += [path for path in self._find(self._at(name)) if _is_manifest(path) and not _is_hidden(path)]
            others += [f"{name}{FLAT_MANIFEST}"]
        for other in others:
            if (other != f"{name}/{MANIFEST}" or manifest.flat) and self._fs.exists(self._at(other)):
                raise StoreError(f"{name} in {self.uri}: {other} is there, and one would hold the other")

    def _sweep(self) -> None:
        """End what dead writers left. Of other machines' writers nobody knows whether they are dead."""
        with self._locked(exclusive=True):
            for leftover in self._leftovers():
                claim = local.claim(leftover)
                if claim is None:
                    continue
                try:
                    self._finish(leftover)
                    if os.path.exists(leftover):
                        self._fs.rm(leftover, recursive=True)
                finally:
                    os.close(claim)

    def _finish(self, leftover: str) -> None:
        """Swap in a staged artifact that had been read back, unless its place is taken."""
        if "/.tmp-" not in leftover or not os.path.exists(f"{leftover}/{MANIFEST}"):
            return
        with contextlib.suppress(ValueError, StoreError):  # then it is no artifact, and goes
            manifest = self._read(f"{leftover}/{MANIFEST}")
            place = self._at(manifest.name)
            taken = f"{place}{FLAT_MANIFEST}" if manifest.flat else place
            if not os.path.exists(taken) and place.rpartition("/")[0] == leftover.rpartition("/")[0]:
                self._swap(leftover, manifest)

    def _leftovers(self) -> list[str]:
        """Staging and trash folders, drafts first; only in a local store."""
        if not self._is_local:
            return []
        found = [folder for folder, _, _ in os.walk(self._root) if _LEFTOVER.fullmatch(folder)]
        return sorted(found, key=lambda path: "/.trash-" in path)

    # Reading.

    def _verify(self, manifests: list[str], paths: list[str]) -> list[Artifact]:
        """Artifacts from their manifests' paths; `paths` are the files seen around them."""
        verified = local.Verified(self._root) if self._is_local else None
        with _pool() as pool:
            waiting: list[tuple[Artifact, list[Future[str]]]] = []
            for path in sorted(manifests):
                name = path.removesuffix(FLAT_MANIFEST).removesuffix(f"/{MANIFEST}")
                try:
                    manifest = self._read(self._at(path))
                    if manifest.name != name:
                        raise ValueError(f"its manifest is that of {manifest.name}")
                except ValueError as error:
                    waiting.append((Artifact(name, "", str(error)), []))
                    continue
                base = "" if manifest.flat else f"{name}/"
                problems = [pool.submit(self._problem, base, entry, verified) for entry in manifest.files]
                known = {f"{base}{entry.path}" for entry in manifest.files} | {path}
                extra = [one for one in paths if base and one.startswith(base) and one not in known]
                extra = [one for one in extra if not _is_hidden(one)]
                problem = f"{extra[0]} is not in its manifest" if extra else ""
                waiting.append((Artifact(name, manifest.fingerprint, problem, manifest.about), problems))
            found = []
            for artifact, problems in waiting:
                wrong = [one for one in (artifact.problem, *(problem.result() for problem in problems)) if one]
                found.append(Artifact(artifact.name, artifact.fingerprint, "; ".join(wrong[:3]), artifact.about))
        if verified is not None:
            verified.save()
        return found

    def _problem(self, base: str, entry: FileEntry, verified: "local.Verified | None") -> str:
        relative = base + entry.path
        path = self._at(relative)
        try:
            if self._is_local and os.path.realpath(path) != path:
                return f"{relative} is reached through a symbolic link"
            size = self._fs.info(path)["size"]
            if size != entry.size:
                return f"{relative} has {size} bytes, its manifest says {entry.size}"
            before = os.stat(path) if self._is_local else None
            digest = verified.get(relative, before) if verified and before else None
            if digest is None:
                digest = self._sha256(path)
                if verified and before:
                    verified.put(relative, before, os.stat(path), digest)
        except FileNotFoundError:
            return f"{relative} is missing"
        except OSError as error:
            return f"{relative} cannot be read ({error})"
        return "" if digest == entry.sha256 else f"{relative} is not what was published (its sha256 differs)"

    def _read(self, path: str) -> Manifest:
        try:
            return Manifest.from_json(self._fs.cat_file(path))
        except OSError as error:
            raise ValueError(f"its manifest cannot be read ({error})") from None

    # Where things lie.

    def _locked(self, exclusive: bool) -> contextlib.AbstractContextManager[None]:
        return local.locked(self._root, exclusive) if self._is_local else contextlib.nullcontext()

    def _sync(self, staging: str) -> None:
        if self._is_local:
            for folder, _, _ in os.walk(staging):
                local.sync(folder)

    def _sync_parents(self, name: str) -> None:
        if self._is_local:
            for depth in range(name.count("/") + 1):
                local.sync(self._at(name).rsplit("/", depth + 1)[0])


def _sources(folder: Path, name: str, flat: bool) -> list[str]:
    """The files of a folder that is to be published, relative to it. Raises StoreError."""
    if flat and "/" in name:
        raise StoreError(f"{name} cannot be flat: its name has folders")
    found = []
    for here, folders, files in os.walk(folder, onerror=_raise):
        for one in (*folders, *files):
            path = Path(here, one)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise StoreError(f"{path} is neither a file nor a folder; {name} was not published")
            if flat and (path.is_dir() or one.startswith(".") or one.endswith(FLAT_MANIFEST)):
                raise StoreError(f"{path} cannot lie at the store's root; {name} was not published")
            if path.is_file() and relative != MANIFEST:  # an artifact published on: it gets a manifest of its own
                found.append(relative)
    if not found:
        raise StoreError(f"{folder} holds no file; {name} was not published")
    return sorted(found)


def _raise(error: OSError) -> None:
    raise StoreError(str(error)) from error


def _is_manifest(path: str) -> bool:
    return path.endswith(f"/{MANIFEST}") or ("/" not in path and path.endswith(FLAT_MANIFEST))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
