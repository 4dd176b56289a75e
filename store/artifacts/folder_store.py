"""The artifact store in a local folder.

    <store>/by-fingerprint/<kind>/<fingerprint>/...             an artifact, kept while a name or lease refers to it
    <store>/<name>/...  and  <store>/<name>/ARTIFACT.json       a name: hard links to the files of its artifact
    <store>/...         and  <store>/<name>.artifact.json       a flat name: the files are at the root

A writer copies the artifact into `.tmp-<uuid>` beside the target, syncs the files, reads them back, adds the manifest
and renames the folder into place. An intact artifact is never replaced; names are swapped. A sweep handles the
leftovers of dead writers: a complete artifact with a free target is moved into place, and everything else is removed.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from store import local_files, untrusted_input
from store.manifest import (
    FLAT_MANIFEST,
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

CHUNK_BYTES = 1 << 20
_LEFTOVER = re.compile(r"(?:.*/)?\.(?:tmp|trash)-[0-9a-f]{32}")


class FolderStore:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = os.path.realpath(uri.removeprefix("file://"))

    def publish(self, folder: Path, name: str, fingerprint: str, about: Mapping[str, Any], flat: bool) -> None:
        """Store the files of `folder` under `fingerprint`, verify them, then point `name` to the artifact.

        Concurrent publishers of the same fingerprint keep the first files; for the same name the last pointer wins.
        Raise StoreError on failure; the previous content then remains.
        """
        sources = sources_of(Path(folder), check_name(name), flat)
        kept = kept_name(name, fingerprint)
        try:
            self._refuse_overlap(Manifest(name, fingerprint, about, (), 0.0, flat))
            before = self.check(kept)
            if before.problem:
                whole = Manifest(kept, fingerprint, about, (), time.time())
                self._write(folder, sources, whole, replaces=before.problem != MISSING)
            self.point_name(name, fingerprint, flat)
        except OSError as error:
            raise StoreError(f"publishing {name} to {self.uri}: {error}") from error

    def write_note(self, folder: Path, name: str, fingerprint: str, about: Mapping[str, Any]) -> None:
        """Replace the files under `name` with the files of `folder`; the old files are removed.

        Raise StoreError on failure; the old files then remain.
        """
        sources = sources_of(Path(folder), check_name(name), flat=False)
        try:
            self._write(folder, sources, Manifest(name, fingerprint, about, (), time.time()))
        except OSError as error:
            raise StoreError(f"writing {name} to {self.uri}: {error}") from error

    def _write(self, folder: Path, sources: list[str], manifest: Manifest, replaces: bool = True) -> None:
        """Copy the files into a staging folder, verify them and move the folder into place.

        replaces: replace an artifact that a concurrent writer has put into place; otherwise keep the artifact in place.
        """
        with self._staging(manifest.name) as staging, _pool() as pool:
            files = tuple(pool.map(lambda path: self._copy(Path(folder, path), path, staging), sources))
            manifest = replace(manifest, files=files)
            local_files.replace(f"{staging}/{MANIFEST}", manifest.to_json().encode())
            self._sync(staging)
            with self._locked(exclusive=True):
                if replaces or not os.path.exists(self._at(f"{manifest.name}/{MANIFEST}")):
                    self._swap(staging, manifest)

    def point_name(self, name: str, fingerprint: str, flat: bool) -> None:
        """Point `name` to the artifact with this fingerprint, atomically.

        Raise StoreError if the artifact does not exist, or if a file of the user occupies the path of the name.
        """
        try:
            kept, before = kept_name(check_name(name), fingerprint), self.check(name)
            found, lies = self.find(name, fingerprint)
            if found.problem or lies != kept:
                raise StoreError(f"{name} in {self.uri}: {found.problem or MISSING}")
            if not before.problem and before.fingerprint == fingerprint:
                return
            while not self._try_point_name(name, kept, flat):
                pass
        except (OSError, ValueError) as error:
            raise StoreError(f"{name} in {self.uri}: {error}") from error

    def _try_point_name(self, name: str, kept: str, flat: bool) -> bool:
        """Try to point `name` to the artifact `kept`; return False if a concurrent publisher changed the name first."""
        before = self.check(name)
        with self._staging(name) as staging:
            manifest = replace(self._read(self._at(f"{kept}/{MANIFEST}")), name=name, flat=flat)
            for entry in manifest.files:
                self._link(f"{self._at(kept)}/{entry.path}", f"{staging}/{entry.path}")
            local_files.replace(f"{staging}/{MANIFEST}", manifest.to_json().encode())
            self._sync(staging)
            with self._locked(exclusive=True):
                if self.read_fingerprint(name) not in ("", before.fingerprint):
                    return False
                self._swap(staging, manifest)
                return True

    def _link(self, source: str, target: str) -> None:
        """Create a hard link from `target` to `source`, or copy the file on file systems without hard links."""
        os.makedirs(target.rpartition("/")[0], exist_ok=True)
        if os.path.realpath(source) != source:
            raise StoreError(f"{source} is reached through a symbolic link")
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
                raise
            shutil.copyfile(source, target)
            local_files.sync(target)

    def remove(self, kept: str) -> None:
        """Remove an artifact, given the fingerprint name. A missing artifact is ignored. Raise StoreError."""
        assert is_kept(kept), kept
        try:
            with self._locked(exclusive=True):
                trash = f"{self._at(kept).rpartition('/')[0]}/.trash-{uuid.uuid4().hex}"
                os.rename(self._at(kept), trash)
                shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"removing {kept} from {self.uri}: {error}") from error

    def check_writable(self) -> None:
        """Raise NoStore unless a temporary file can be written to the store or the nearest existing parent folder."""
        folder = Path(self._root)
        while not os.path.lexists(folder):
            folder = folder.parent
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"x")
        except OSError as error:
            raise NoStore(
                f"the store {self.uri} is not writable: {error}; give a different store: --store, or inv train --out"
            ) from None

    def artifacts(self) -> list[Artifact]:
        """Return all artifacts by name, each verified by size and sha256."""
        if self._leftovers() and os.access(self._root, os.W_OK):
            self._sweep()
        with self._locked(exclusive=False):
            paths = self._find(self._root)
            manifests = [path for path in paths if is_manifest(path) and not is_hidden(path)]
            return self._verify(manifests, paths)

    def check(self, name: str, deep: bool = False) -> Artifact:
        """Return the verified artifact under `name`; `problem` is set if the artifact is missing or damaged."""
        check_name(name)
        with self._locked(exclusive=False):
            for manifest in places(name):
                if os.path.exists(self._at(manifest)):
                    return self._verify([manifest], self._find(self._at(name)))[0]
        return Artifact(name, "", MISSING)

    def path(self, name: str, fingerprint: str) -> Path:
        """Return the folder with the files of the artifact, freshly verified.

        Raise StoreError if the artifact is missing, damaged or has a different fingerprint.
        """
        found, where = self.find(name, fingerprint)
        if found.problem:
            raise StoreError(f"{name} in {self.uri}: {found.problem}")
        return Path(self._at(where)) if os.path.exists(self._at(f"{where}/{MANIFEST}")) else Path(self._root)

    def find(self, name: str, fingerprint: str) -> tuple[Artifact, str]:
        """Return the verified artifact with this fingerprint and the name of the folder in the store; see `choose`."""
        return choose(name, fingerprint, self.check)

    def read_fingerprint(self, name: str) -> str:
        """Return the unverified fingerprint under `name`, or "" if no manifest can be read."""
        try:
            return self.manifest(name).fingerprint
        except StoreError:
            return ""

    def manifest(self, name: str) -> Manifest:
        """Return the manifest under `name` without verifying files. Raise StoreError if no manifest can be read."""
        for place in places(check_name(name)):
            if os.path.exists(self._at(place)):
                try:
                    return self._read(self._at(place))
                except ValueError as error:
                    raise StoreError(f"{name} in {self.uri}: {error}") from None
        raise StoreError(f"{name} in {self.uri}: {MISSING}")

    def adopt(self, folder: Path, manifest: Manifest, replaces: bool = False) -> None:
        """Move a folder on this disk with verified files into the store as an artifact. Raise StoreError.

        replaces: also replace an intact artifact with this fingerprint.
        """
        kept = kept_name(manifest.name, manifest.fingerprint)
        whole = replace(manifest, name=kept, flat=False)
        try:
            if replaces or self.check(kept).problem:
                local_files.replace(folder / MANIFEST, whole.to_json().encode())
                self._sync(str(folder))
                with self._locked(exclusive=True):
                    os.makedirs(self._at(kept).rpartition("/")[0], exist_ok=True)
                    self._swap(str(folder), whole)
            else:
                shutil.rmtree(folder)
            if not is_kept(manifest.name):
                self.point_name(manifest.name, manifest.fingerprint, manifest.flat)
        except OSError as error:
            raise StoreError(f"{manifest.name} could not be moved into {self.uri}: {error}") from error

    # Writing.

    @contextlib.contextmanager
    def _staging(self, name: str) -> Iterator[str]:
        """Yield a new staging folder beside the target of `name`; hold a claim on the folder and remove it on exit."""
        parent = self._at(name).rpartition("/")[0]
        staging = f"{parent}/.tmp-{uuid.uuid4().hex}"
        self._refuse_links(parent)
        if self._leftovers():
            self._sweep()
        with self._locked(exclusive=True):  # hide the new folder from a sweeper until the claim is held
            os.makedirs(staging)
            claim = local_files.claim(staging)
        try:
            yield staging
        finally:
            if os.path.exists(staging):
                shutil.rmtree(staging)
            if claim is not None:
                os.close(claim)

    def _copy(self, source: Path, path: str, staging: str) -> FileEntry:
        target = f"{staging}/{path}"
        os.makedirs(target.rpartition("/")[0], exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with open(source, "rb") as file, open(target, "wb") as copy:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if _sha256(target) != digest.hexdigest():
            raise StoreError(f"{target} reads back with other bytes than were written; nothing was published")
        return FileEntry(path, size, digest.hexdigest())

    def _swap(self, staging: str, manifest: Manifest) -> None:
        """Move the staged artifact to the target path. The caller holds the exclusive lock."""
        self._refuse_overlap(manifest)
        place = self._at(manifest.name)
        if not manifest.flat:
            # Only a folder with our manifest may be removed; other content is moved aside and kept.
            kind = "trash" if os.path.exists(f"{place}/{MANIFEST}") else "aside"
            old = f"{place.rpartition('/')[0]}/.{kind}-{uuid.uuid4().hex}"
            if os.path.lexists(place):
                os.rename(place, old)
            os.rename(staging, place)
            self._sync_parents(manifest.name)
            if kind == "trash":
                shutil.rmtree(old)
        else:
            base = self._root if manifest.flat else place
            current = f"{place}{FLAT_MANIFEST}" if manifest.flat else f"{place}/{MANIFEST}"
            before: set[str] = set()
            if os.path.exists(current):
                with contextlib.suppress(ValueError):  # a damaged manifest lists no removable files
                    before = {entry.path for entry in self._read(current).files}
                os.remove(current)
            for entry in manifest.files:
                if os.path.exists(f"{staging}/{entry.path}"):  # else a dead writer moved the file already
                    os.makedirs(f"{base}/{entry.path}".rpartition("/")[0], exist_ok=True)
                    os.replace(f"{staging}/{entry.path}", f"{base}/{entry.path}")
            os.replace(f"{staging}/{MANIFEST}", current)
            for path in before - {entry.path for entry in manifest.files}:
                if os.path.exists(f"{base}/{path}"):
                    os.remove(f"{base}/{path}")
            self._sync_parents(manifest.name)

    def _refuse_overlap(self, manifest: Manifest) -> None:
        """Raise StoreError if two artifacts would be nested: swapping the outer artifact would remove the inner one."""
        name, parts = manifest.name, manifest.name.split("/")
        if manifest.flat:
            others = [f"{name}/{MANIFEST}"]
        else:
            others = [f"{'/'.join(parts[:depth])}/{MANIFEST}" for depth in range(1, len(parts))]
            others += [path for path in self._find(self._at(name)) if is_manifest(path) and not is_hidden(path)]
            others += [f"{name}{FLAT_MANIFEST}"]
        for one in others:
            if (one != f"{name}/{MANIFEST}" or manifest.flat) and os.path.exists(self._at(one)):
                raise StoreError(
                    f"{name} in {self.uri}: {one} exists already, and an artifact cannot lie inside of a second "
                    "artifact"
                )

    def _sweep(self) -> None:
        """Finish or remove the leftovers of dead writers.

        A claim (`flock`) protects the folder of a live writer. For writers on other machines, liveness is unknown.
        """
        with self._locked(exclusive=True):
            for leftover in self._leftovers():
                claim = local_files.claim(leftover)
                if claim is None:
                    continue
                try:
                    self._finish(leftover)
                    if os.path.exists(leftover):
                        shutil.rmtree(leftover)
                finally:
                    os.close(claim)

    def _finish(self, leftover: str) -> None:
        """Move a verified staged artifact into place unless the target exists."""
        if "/.tmp-" not in leftover or not os.path.exists(f"{leftover}/{MANIFEST}"):
            return
        with contextlib.suppress(ValueError, StoreError):  # not an artifact: the caller removes the folder
            manifest = self._read(f"{leftover}/{MANIFEST}")
            place = self._at(manifest.name)
            taken = f"{place}{FLAT_MANIFEST}" if manifest.flat else place
            if not os.path.exists(taken) and place.rpartition("/")[0] == leftover.rpartition("/")[0]:
                self._swap(leftover, manifest)

    def _leftovers(self) -> list[str]:
        """Return the staging and trash folders, staging folders first."""
        found = [folder for folder, _, _ in os.walk(self._root) if _LEFTOVER.fullmatch(folder)]
        return sorted(found, key=lambda path: "/.trash-" in path)

    # Reading.

    def _verify(self, manifests: list[str], paths: list[str]) -> list[Artifact]:
        """Return the artifacts for the given manifest paths; `paths` lists all files found around the manifests."""
        verified = local_files.Verified(self._root)
        with _pool() as pool:
            waiting: list[tuple[Artifact, list[Future[str]]]] = []
            for path in sorted(manifests):
                name = name_at(path)
                try:
                    manifest = self._read(self._at(path))
                    if places(manifest.name)[manifest.flat] != path:
                        raise ValueError(f"the manifest belongs to {manifest.name}")
                except ValueError as error:
                    waiting.append((Artifact(untrusted_input.printable(name), "", str(error)), []))
                    continue
                base = "" if manifest.flat else f"{name}/"
                problems = [pool.submit(self._problem, base, entry, verified) for entry in manifest.files]
                known = {f"{base}{entry.path}" for entry in manifest.files} | {path}
                extra = [one for one in paths if base and one.startswith(base) and one not in known]
                extra = [one for one in extra if not is_hidden(one)]
                problem = f"{untrusted_input.printable(extra[0])} is not in the manifest" if extra else ""
                waiting.append((manifest.artifact(problem), problems))
            found = []
            for artifact, problems in waiting:
                wrong = [one for one in (artifact.problem, *(problem.result() for problem in problems)) if one]
                found.append(replace(artifact, problem="; ".join(wrong[:3])))
        verified.save()
        return found

    def _problem(self, base: str, entry: FileEntry, verified: local_files.Verified) -> str:
        relative = base + entry.path
        path = self._at(relative)
        try:
            if os.path.realpath(path) != path:
                return f"{relative} is reached through a symbolic link"
            if not os.path.isfile(path):
                return f"{relative} is {'no regular file' if os.path.lexists(path) else 'missing'}"
            size = os.stat(path).st_size
            if size != entry.size:
                return f"{relative} has {size} bytes, but {entry.size} bytes in the manifest"
            before = os.stat(path)
            digest = verified.get(relative, before)
            if digest is None:
                digest = _sha256(path)
                verified.put(relative, before, os.stat(path), digest)
        except FileNotFoundError:
            return f"{relative} is missing"
        except OSError as error:
            return f"{relative} cannot be read ({error})"
        return "" if digest == entry.sha256 else f"{relative} has changed since the publication (other sha256)"

    def _read(self, path: str) -> Manifest:
        try:
            if os.path.realpath(path) != path:
                raise ValueError("the manifest is reached through a symbolic link")
            return Manifest.from_json(untrusted_input.content(path))
        except OSError as error:
            raise ValueError(f"the manifest cannot be read ({error})") from None

    # Paths.

    def _at(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def _find(self, place: str) -> list[str]:
        """Return all files at and below `place`, relative to the root of the store."""
        found = [os.path.join(here, one) for here, _, files in os.walk(place) for one in files]
        return sorted(os.path.relpath(path, self._root) for path in found)

    def _refuse_links(self, folder: str) -> None:
        if os.path.realpath(folder) != folder:
            raise StoreError(f"{folder} leads out of the store through a symbolic link")

    def _locked(self, exclusive: bool) -> contextlib.AbstractContextManager[None]:
        return local_files.locked(self._root, exclusive)

    def _sync(self, staging: str) -> None:
        for folder, _, _ in os.walk(staging):
            local_files.sync(folder)

    def _sync_parents(self, name: str) -> None:
        for depth in range(name.count("/") + 1):
            local_files.sync(self._at(name).rsplit("/", depth + 1)[0])


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
