"""The model of a service: from its source to a folder of this machine that an engine loads.

In: a run or an artifact of a store of ours, a folder, `hf://user/repo[@revision]`, `s3://` or `gs://bucket/folder`.
Out: a ServedModel. A remote model is downloaded once, to a folder that all replicas of a machine share: by content, so
that a new release is another folder, and file by file, so that an interrupted start resumes where it ended.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from store import catalogue, credentials, local_files, outside
from store.artifacts import model_files, vocabulary
from store.artifacts.artifacts import Store
from store.backends.backend import Backend, ListedFile
from store.backends.by_uri import open_place
from store.manifest import MANIFEST, Artifact, Manifest, StoreError, check_name

CONFIG, TOKENIZER, FAKE = "config.json", "tokenizer.json", "fake.json"
OURS = "hf"  # the folder of an artifact of ours that engines read
SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
WEIGHTS = ".safetensors"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    folder: Path
    name: str
    """Name of the model for clients."""


def resolve(source: str, name: str, *, store: str, cache: Path, say: Say) -> ServedModel:
    """Return the model called `name`, whole, in a folder of this machine.

    store: of our artifacts, a URI or a folder. Raises UsageError when there is no such model, StoreError when it cannot
    be downloaded.
    """
    if "://" in source and credentials.kind(source) != "file":
        return ServedModel(folder=_bring(source, cache, say), name=name)
    if found := of_store(source, store):
        if credentials.kind(store) in ("", "file"):
            return ServedModel(folder=model_folder(Store(store).path(found.name, found.fingerprint)), name=name)
        lies = Store(store).find(found.name, found.fingerprint).name  # a folder that no launch overwrites
        return ServedModel(folder=_bring(f"{store.rstrip('/')}/{lies}", cache, say), name=name)
    folder = Path(source.removeprefix("file://")).expanduser().absolute()
    if folder.is_dir():
        return ServedModel(folder=model_folder(folder), name=name)
    raise UsageError(
        f"no model {source!r}: {_known(store)}; a folder or hf://user/repo, s3:// or gs://bucket/folder are accepted"
    )


def model_folder(folder: Path) -> Path:
    """Return `folder` itself, or that part of an artifact of ours which engines read. Raises UsageError."""
    inner = folder / OURS if (folder / OURS / CONFIG).is_file() else folder
    if (inner / FAKE).is_file():  # a model of the scripted engine
        return inner
    if (trouble := problem({path.name for path in inner.iterdir() if path.is_file()})) or (trouble := _unread(inner)):
        raise UsageError(f"{folder} is not a model that an engine can load: {trouble}")
    if trouble := vocabulary.problem_in(folder):
        raise UsageError(f"{folder}: {trouble}; an engine could not answer sensibly")
    return inner


def problem(names: set[str]) -> str:
    """Return why these files make no model, in words; "" = they may."""
    if CONFIG not in names:
        return f"it has no {CONFIG}; wanted is a Hugging Face folder, such as ./inv export makes"
    if not any(one.endswith(WEIGHTS) for one in names):
        return f"it has no {WEIGHTS} file; weights are read from those only"
    if not any(one.startswith("tokenizer") or one == "vocab.json" for one in names):
        return f"it has no {TOKENIZER}"
    return ""


def of_store(source: str, store: str) -> Artifact | None:
    """Return the artifact of that name, or the last one that the run `source` has published. Raises StoreError."""
    if "/" not in source:
        run = _of_run(source, store)
        return Store(store).check(run) if run else None
    try:
        check_name(source)
    except StoreError:  # a path, then
        return None
    found = Store(store).check(source)
    if not found.problem:
        return found
    if found.fingerprint:
        raise StoreError(f"{source} in {store}: {found.problem}")
    return None


def _of_run(run: str, store: str) -> str:
    made = [one for one in catalogue.in_store(store) if one.kind == "final" and one.manifest.get("run") == run]
    return max(made, key=lambda one: one.saved_at).name if run and made else ""


def _known(store: str) -> str:
    names = sorted(one.name for one in Store(store).artifacts() if not one.problem and "_checkpoints/" in one.name)
    return f"{store} has {', '.join(names)}" if names else f"{store} has none yet"


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache that all replicas on this machine share, of every pod."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "models"


# Bringing.


def size_there(uri: str) -> int:
    """Return the bytes of the model at `uri`, of which nothing is fetched. Raises UsageError, StoreError."""
    place = open_place(uri)
    _, wanted = _wanted(uri, place.listing(at=place.pin()))
    return sum(one.size for one in wanted.values())


def sketch(uri: str) -> tuple[dict[str, Any], int]:
    """Return the config of the model at `uri`, and the bytes of its weights, of which nothing is fetched.

    Raises UsageError, StoreError.
    """
    place = open_place(uri)
    at = place.pin()
    inside, wanted = _wanted(uri, place.listing(at=at))
    try:
        config = outside.mapping(place.small(f"{inside}{CONFIG}", at), model_files.CONFIG_BYTES)
        model_files.check_sizes(config)
    except ValueError as error:
        raise UsageError(f"{uri}: {CONFIG}: {error}") from None
    return config, sum(one.size for name, one in wanted.items() if name.endswith(WEIGHTS))


def _wanted(uri: str, there: Mapping[str, ListedFile]) -> tuple[str, dict[str, ListedFile]]:
    """Return the folder that the model lies in, "" or "hf/", and its files. Raises UsageError."""
    if not there:
        raise UsageError(f"{uri}: not found, or access denied (check HF_TOKEN, or the keys of the bucket)")
    inside = f"{OURS}/" if f"{OURS}/{CONFIG}" in there else ""
    wanted = {name: there[name] for name in sorted(there) if _is_wanted(name, inside)}
    if trouble := problem({name.removeprefix(inside) for name in wanted}):
        raise UsageError(f"{uri} is not a model that an engine can load: {trouble}")
    return inside, wanted


def _bring(uri: str, cache: Path, say: Say) -> Path:
    """Return the folder with the model at `uri`, as it is there now. Raises UsageError, StoreError."""
    place = open_place(uri)
    at = place.pin()
    there = place.listing(at=at)
    inside, wanted = _wanted(uri, there)
    sums: dict[str, str] = {}
    if MANIFEST in there:
        try:
            sums = {file.path: file.sha256 for file in Manifest.from_json(place.small(MANIFEST, at)).files}
        except ValueError as error:
            raise StoreError(f"{uri}: {error}") from None
    content = "".join(f"{name} {one.size} {one.version}\n" for name, one in wanted.items())
    folder = cache / hashlib.sha256(f"{uri}\n{content}".encode()).hexdigest()[:24]
    try:
        with _alone(folder) as draft:  # a second replica waits for the first, and finds all there
            if not folder.is_dir():
                gigabytes = sum(one.size for one in wanted.values()) / 1e9
                say(f"bringing {uri} ({gigabytes:.2f} GB) to {folder}")
                for name, entry in wanted.items():
                    wants = entry.sha256 or sums.get(name, "")
                    _bring_file(place, name, at, entry, wants, draft / name.removeprefix(inside))
                os.rename(draft, folder)
    except OSError as error:
        raise StoreError(f"bringing {uri} to {folder}: {error}") from error
    return model_folder(folder)


def _is_wanted(name: str, inside: str) -> bool:
    """Return whether a file belongs to the model: it is at the top, as some repositories keep other formats below."""
    rest = name.removeprefix(inside)
    return name.startswith(inside) and "/" not in rest and not rest.startswith(".") and rest.endswith(SUFFIXES)


def _bring_file(place: Backend, name: str, at: str, entry: ListedFile, sha256: str, path: Path) -> None:
    """Download a file to `path`, whole or not at all; resume what came of it before. Raises StoreError."""
    if path.exists():
        return
    part = path.with_name(f"{path.name}.part")  # a draft that is resumed, so not one of `store.local_files`
    if not sha256:  # a damaged beginning would not be noticed
        part.unlink(missing_ok=True)
    for _ in range(2):  # an earlier attempt may have left a part of another file: then all of it is downloaded
        digest = hashlib.sha256()
        with part.open("a+b") as copy:
            copy.seek(0)
            while chunk := copy.read(1 << 20):
                digest.update(chunk)
            start = copy.tell()
            for piece in place.pieces(name, at, start, "" if at else entry.version):
                copy.write(piece)
                digest.update(piece)
            copy.flush()
            os.fsync(copy.fileno())
        if part.stat().st_size == entry.size and sha256 in ("", digest.hexdigest()):
            os.rename(part, path)
            return
        part.unlink()
        if start == 0:
            break
    raise StoreError(f"{place.uri}: {name}: the download does not match its listing (size or sha256 differ)")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """Yield the draft of `folder`, locked against other processes."""
    draft = folder.with_name(f".{folder.name}.draft")
    draft.mkdir(parents=True, exist_ok=True)
    with local_files.held(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            draft.mkdir(exist_ok=True)
        yield draft
    with contextlib.suppress(OSError):  # not empty: another process has begun
        draft.rmdir()


def _unread(folder: Path) -> str:
    """Return why an engine must not be given what lies there, in words."""
    try:
        for one in folder.iterdir():
            if one.name.endswith(SUFFIXES):
                model_files.held(folder, one.name)
        model_files.check(folder)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
