"""The manifest of an artifact and the naming rules for artifacts."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from store import untrusted_input
from store.errors import AccessDenied as AccessDenied
from store.errors import NoStore as NoStore
from store.errors import StoreError as StoreError
from store.untrusted_input import is_inside, is_part

SCHEMA = 1
MISSING = "it is missing"
MANIFEST = "ARTIFACT.json"  # in the artifact's folder
FLAT_MANIFEST = ".artifact.json"  # suffix after the name, at the root of the store
BY_FINGERPRINT = "by-fingerprint"  # folder of all artifacts, as <kind>/<fingerprint>; other names are pointers
STAGE_NAME = re.compile(r"(?!datasets/|by-fingerprint/|runs/)(?:[A-Za-z0-9._-]+/){2,}stage(1|1\.9|2|3)")  # 1.58-bit
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Artifact:
    """An artifact under a name in the store."""

    name: str
    fingerprint: str
    problem: str = ""  # "" if intact, else the problem in words
    about: Mapping[str, Any] = field(default_factory=dict)  # facts recorded by the step that made the artifact
    num_bytes: int = field(default=0, compare=False)
    published_at: float = field(default=0.0, compare=False)  # UTC epoch seconds

    @property
    def inputs(self) -> dict[str, tuple[str, str]]:
        """Return name and fingerprint of each recorded input, by role; malformed entries are left out."""
        said = self.about.get("inputs")
        found: dict[str, tuple[str, str]] = {}
        for role, one in said.items() if isinstance(said, dict) else ():
            name, fingerprint = (one.get("name"), one.get("fingerprint")) if isinstance(one, dict) else (None, None)
            if isinstance(name, str) and isinstance(fingerprint, str) and is_name(name):
                found[role] = name, fingerprint
        return found


@dataclass(frozen=True)
class FileEntry:
    path: str  # relative to the folder of the artifact, with "/"
    size: int
    sha256: str
    version: str = ""  # version tag of the backend, if any


@dataclass(frozen=True)
class Manifest:
    name: str
    fingerprint: str
    about: Mapping[str, Any]
    files: tuple[FileEntry, ...]
    published_at: float  # UTC epoch seconds
    flat: bool = False

    def place(self, path: str) -> str:
        """Return the path of a file of the artifact relative to the root of the store."""
        return path if self.flat else f"{self.name}/{path}"

    def artifact(self, problem: str = "") -> Artifact:
        """Return the artifact record of this manifest, without files."""
        size = sum(entry.size for entry in self.files)
        return Artifact(self.name, self.fingerprint, problem, self.about, size, self.published_at)

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: bytes) -> "Manifest":
        """Return the manifest in `text`.

        Raise ValueError with a readable message unless `text` is a manifest of this schema with safe paths.
        """
        try:
            raw = untrusted_input.mapping(text)
            schema = raw.pop("schema")
            if schema != SCHEMA:
                raise ValueError(f"schema {untrusted_input.printable_line(schema)}, known is {SCHEMA}")
            for key in raw:
                untrusted_input.typed(raw, key, _KINDS[key])
            files = tuple(entry_of(entry) for entry in raw["files"])
            manifest = Manifest(**{**raw, "files": files})
            check_name(manifest.name)
            paths = {entry.path for entry in files}
            if not paths or len(paths) != len(files) or MANIFEST in paths:
                raise ValueError("the manifest lists no file, lists a file twice, or lists itself")
            if manifest.flat and (odd := [one for one in paths if not _is_flat(one)]):
                raise ValueError(f"entry {untrusted_input.printable_line(odd[0])} is not allowed in a flat artifact")
        except (KeyError, TypeError, AttributeError, ValueError, StoreError) as error:
            raise ValueError(f"the manifest cannot be used ({error})") from None
        return manifest


_KINDS: dict[str, type] = {
    "name": str,
    "fingerprint": str,
    "about": dict,
    "files": list,
    "published_at": float,
    "flat": bool,
}


def entry_of(said: Any) -> FileEntry:
    """Return a file entry of a manifest. Raise ValueError unless the path stays in the folder of the manifest."""
    if type(said) is not dict:
        raise ValueError(f"entry {untrusted_input.printable_line(said)}")
    path, sha256 = untrusted_input.typed(said, "path", str), untrusted_input.typed(said, "sha256", str)
    size, version = untrusted_input.typed(said, "size", int), untrusted_input.typed(said, "version", str, "")
    if not is_inside(path) or not _SHA256.fullmatch(sha256) or size < 0:
        raise ValueError(f"entry {untrusted_input.printable_line(path)}")
    return FileEntry(path, size, sha256, version)


def stage_name(prefix: str, model: str, stage: str) -> str:
    """Return the stage alias of a 1.58-bit model: `<prefix>/<model>/stage<stage>`."""
    return f"{prefix}/{model}/stage{stage}"


def kind_of(name: str) -> str:
    """Return the kind in the name of an artifact, without the owner: `base_checkpoints`, `tokens`, `tokenizer`."""
    parts = name.split("/")
    if parts[0] == BY_FINGERPRINT and len(parts) == 3:
        return parts[1]
    if stage := STAGE_NAME.fullmatch(name):
        return f"bits{stage[1]}_checkpoints"
    return parts[-1] if parts[0] == "datasets" else parts[0]


def kept_name(name: str, fingerprint: str) -> str:
    """Return the permanent name of an artifact, `by-fingerprint/<kind>/<fingerprint>`, for any other name."""
    part = fingerprint if is_part(fingerprint) else sha256(fingerprint.encode()).hexdigest()[:32]
    return f"{BY_FINGERPRINT}/{kind_of(name)}/{part}"


def is_kept(name: str) -> bool:
    return name.startswith(f"{BY_FINGERPRINT}/")


def choose(name: str, fingerprint: str, check: Callable[[str], Artifact]) -> tuple[Artifact, str]:
    """Return the artifact with this fingerprint and the name of the folder in the store: the permanent name, or `name`.

    A note exists only under `name`; and if the permanent copy is damaged, the copy under `name` may be intact. `check`
    looks up a single name. `problem` is set if the artifact is missing, damaged or has a different fingerprint.
    """
    kept = check(kept_name(name, fingerprint))
    if not kept.problem or is_kept(name):
        return kept, kept.name
    named = check(name)
    if not named.problem and named.fingerprint == fingerprint:
        return named, name
    if kept.fingerprint:  # present but damaged
        return kept, kept.name
    return Artifact(name, "", named.problem or fingerprint_mismatch(named.fingerprint, fingerprint)), name


def fingerprint_mismatch(seen: str, wanted: str) -> str:
    return f"the fingerprint is {seen}, but {wanted} is wanted; launch again"


def places(name: str) -> tuple[str, str]:
    """Return the two possible paths of a manifest under the root of the store: in the folder, or beside flat files."""
    return f"{name}/{MANIFEST}", f"{name}{FLAT_MANIFEST}"


def is_name(name: str) -> bool:
    return all(is_part(part) for part in name.split("/"))


def check_name(name: str) -> str:
    """Return `name` unchanged. Raise StoreError unless `name` consists of parts of `[A-Za-z0-9._-]` joined by "/"."""
    if not is_name(name):
        raise StoreError(f"{name!r} cannot name an artifact: letters, digits, '.', '_' and '-', in parts joined by '/'")
    return name


def is_manifest(path: str) -> bool:
    """Return whether a path under the root of the store is the path of an artifact manifest."""
    return path.endswith(f"/{MANIFEST}") or ("/" not in path and path.endswith(FLAT_MANIFEST))


def is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def name_at(manifest: str) -> str:
    """Return the name of the artifact with the manifest at this path."""
    return manifest.removesuffix(FLAT_MANIFEST).removesuffix(f"/{MANIFEST}")


def _is_flat(path: str) -> bool:
    """Return whether a file of an artifact may be stored at the root of the store."""
    return "/" not in path and not path.startswith(".") and not path.endswith(FLAT_MANIFEST)


def sources_of(folder: Path, name: str, flat: bool) -> list[str]:
    """Return the relative paths of the files to publish from a folder. Raise StoreError for unsupported entries."""
    if flat and "/" in name:
        raise StoreError(f"{name} cannot be flat: the name has folders")
    found = []
    for here, folders, files in os.walk(folder, onerror=_raise):
        for one in (*folders, *files):
            path = Path(here, one)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise StoreError(f"{path} is neither a file nor a folder; {name} was not published")
            if flat and (path.is_dir() or not _is_flat(one)):
                raise StoreError(f"{path} is not allowed at the root of the store; {name} was not published")
            # Skip the manifest of a republished artifact, since publishing writes a new manifest.
            if path.is_file() and relative != MANIFEST:
                found.append(relative)
    if not found:
        raise StoreError(f"{folder} holds no file; {name} was not published")
    return sorted(found)


def _raise(error: OSError) -> None:
    raise StoreError(str(error)) from error
