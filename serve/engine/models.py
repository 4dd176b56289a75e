"""Model of a service: resolves a source to a local folder that an engine loads.

A source is a run or an artifact in a store of ours, a folder, `hf://user/repo[@revision]`, or `s3://` or
`gs://bucket/folder`; the result is a ServedModel. A remote model is downloaded once, to a folder shared by all replicas
on a machine. The folder is named by content, so a new release gets a new folder. Downloads go file by file, so an
interrupted start resumes.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.names import similar
from store import catalogue, credentials, local_files, untrusted_input
from store.artifacts import model_files, vocabulary
from store.artifacts.artifacts import Store
from store.backends.backend import Backend, ListedFile, open_place
from store.manifest import MANIFEST, Artifact, Manifest, StoreError, check_name

CONFIG, TOKENIZER, FAKE = "config.json", "tokenizer.json", "fake.json"
OURS = "hf"  # subfolder for engines in an artifact of ours
SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
WEIGHTS = ".safetensors"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    folder: Path
    name: str
    """Model name for clients."""


def resolve(source: str, name: str, *, store: str, cache: Path, say: Say) -> ServedModel:
    """Return the model called `name`, complete, in a local folder.

    `store`: store of our artifacts, a URI or a folder. Raises UsageError for an unknown model, StoreError for a failed
    download.
    """
    if "://" in source and credentials.kind(source) != "file":
        return ServedModel(folder=_bring(source, cache, say), name=name)
    if found := find_artifact(source, store):
        if credentials.kind(store) in ("", "file"):
            return ServedModel(folder=model_folder(Store(store).path(found.name, found.fingerprint)), name=name)
        lies = Store(store).find(found.name, found.fingerprint).name  # a folder never overwritten by a launch
        return ServedModel(folder=_bring(f"{store.rstrip('/')}/{lies}", cache, say), name=name)
    folder = Path(source.removeprefix("file://")).expanduser().absolute()
    if folder.is_dir():
        return ServedModel(folder=model_folder(folder), name=name)
    raise UsageError(
        f"no model {source!r}: {_known(source, store)}; or give a folder, hf://user/repo, s3:// or gs://bucket/folder"
    )


def model_folder(folder: Path) -> Path:
    """Return `folder`, or the subfolder for engines of our artifact. Raises UsageError for an unusable model."""
    inner = folder / OURS if (folder / OURS / CONFIG).is_file() else folder
    if (inner / FAKE).is_file():  # a model of the scripted engine
        return inner
    if (trouble := problem({path.name for path in inner.iterdir() if path.is_file()})) or (trouble := _unread(inner)):
        raise UsageError(f"{folder} is not a model that an engine can load: {trouble}")
    if trouble := vocabulary.problem_in(folder):
        raise UsageError(f"{folder}: {trouble}; an engine could not give useful answers")
    return inner


def problem(names: set[str]) -> str:
    """Return the reason why files with these names are no model, as text; "" = complete by name."""
    if CONFIG not in names:
        return f"the model has no {CONFIG}; give a Hugging Face folder, such as ./inv export makes"
    if not any(one.endswith(WEIGHTS) for one in names):
        return f"the model has no {WEIGHTS} file; weights are read from {WEIGHTS} files only"
    if not any(one.startswith("tokenizer") or one == "vocab.json" for one in names):
        return f"it has no {TOKENIZER}"
    return ""


def find_artifact(source: str, store: str) -> Artifact | None:
    """Return the artifact `source`, or the last final artifact of the run `source`, or None. Raises StoreError."""
    if "/" not in source:
        run = _of_run(source, store)
        return Store(store).check(run) if run else None
    try:
        check_name(source)
    except StoreError:  # a path, not a name
        return None
    found = Store(store).check(source)
    if not found.problem:
        return found
    if found.fingerprint:
        raise StoreError(f"{source} in {store}: {found.problem}")
    return None


def _of_run(run: str, store: str) -> str:
    made = [
        one for one in catalogue.stored_checkpoints(store) if one.kind == "final" and one.manifest.get("run") == run
    ]
    return max(made, key=lambda one: one.saved_at).name if run and made else ""


def _known(source: str, store: str) -> str:
    names = sorted(one.name for one in Store(store).artifacts() if not one.problem and "_checkpoints/" in one.name)
    if near := similar(source, names):
        return f"did you mean {' or '.join(near)}"
    return f"{store} has {', '.join(names)}" if names else f"{store} has none yet"


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache shared by all replicas of every pod on this machine."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "models"


# Download.


def size_there(uri: str) -> int:
    """Return the size in bytes of the model at `uri`, without a download. Raises UsageError, StoreError."""
    place = open_place(uri)
    _, wanted = _wanted(uri, place.listing(at=place.current_revision()))
    return sum(one.size for one in wanted.values())


def remote_config(uri: str) -> tuple[dict[str, Any], int]:
    """Return the config of the model at `uri` and the size of the weights in bytes, without downloading weights.

    Raises UsageError, StoreError.
    """
    place = open_place(uri)
    at = place.current_revision()
    inside, wanted = _wanted(uri, place.listing(at=at))
    try:
        config = untrusted_input.mapping(place.read_small(f"{inside}{CONFIG}", at), model_files.CONFIG_BYTES)
        model_files.check_sizes(config)
    except ValueError as error:
        raise UsageError(f"{uri}: {CONFIG}: {error}") from None
    return config, sum(one.size for name, one in wanted.items() if name.endswith(WEIGHTS))


def _wanted(
    uri: str, there: Mapping[str, ListedFile], check: Callable[[set[str]], str] = problem
) -> tuple[str, dict[str, ListedFile]]:
    """Return the folder of the model, "" or "hf/", and the files of the model. Raises UsageError."""
    if not there:
        raise UsageError(f"{uri}: not found, or access denied (check HF_TOKEN, or the keys of the bucket)")
    inside = f"{OURS}/" if f"{OURS}/{CONFIG}" in there else ""
    wanted = {name: there[name] for name in sorted(there) if _is_wanted(name, inside)}
    if trouble := check({name.removeprefix(inside) for name in wanted}):
        raise UsageError(f"{uri} is not a model that an engine can load: {trouble}")
    return inside, wanted


def _bring(uri: str, cache: Path, say: Say) -> Path:
    """Return a folder with the current model at `uri`, downloaded if missing. Raises UsageError, StoreError."""
    return model_folder(bring_files(uri, cache, say, problem))


def bring_files(uri: str, cache: Path, say: Say, check: Callable[[set[str]], str]) -> Path:
    """Return a folder with the current files at `uri`, downloaded if missing. Raises UsageError, StoreError.

    check: returns the reason why files with these names are unusable, "" for usable files.
    """
    place = open_place(uri)
    at = place.current_revision()
    there = place.listing(at=at)
    inside, wanted = _wanted(uri, there, check)
    sums: dict[str, str] = {}
    if MANIFEST in there:
        try:
            sums = {file.path: file.sha256 for file in Manifest.from_json(place.read_small(MANIFEST, at)).files}
        except ValueError as error:
            raise StoreError(f"{uri}: {error}") from None
    content = "".join(f"{name} {one.size} {one.version}\n" for name, one in wanted.items())
    folder = cache / hashlib.sha256(f"{uri}\n{content}".encode()).hexdigest()[:24]
    try:
        with _alone(folder) as draft:  # a second replica waits here and then finds the complete folder
            if not folder.is_dir():
                gigabytes = sum(one.size for one in wanted.values()) / 1e9
                say(f"bringing {uri} ({gigabytes:.2f} GB) to {folder}")
                for name, entry in wanted.items():
                    wants = entry.sha256 or sums.get(name, "")
                    _bring_file(place, name, at, entry, wants, draft / name.removeprefix(inside))
                os.rename(draft, folder)
    except OSError as error:
        raise StoreError(f"bringing {uri} to {folder}: {error}") from error
    return folder


def _is_wanted(name: str, inside: str) -> bool:
    """Return whether a file belongs to the model: top level only, as some repositories keep other formats below."""
    rest = name.removeprefix(inside)
    return name.startswith(inside) and "/" not in rest and not rest.startswith(".") and rest.endswith(SUFFIXES)


def _bring_file(place: Backend, name: str, at: str, entry: ListedFile, sha256: str, path: Path) -> None:
    """Download a file to `path`, completely or not at all; resume an earlier partial download. Raises StoreError."""
    if path.exists():
        return
    part = path.with_name(f"{path.name}.part")  # resumable, so not a draft of `store.local_files`
    if not sha256:  # damage in the partial file would go unnoticed
        part.unlink(missing_ok=True)
    # An earlier attempt may have left a part of a different file: then the second pass downloads the whole file.
    for _ in range(2):
        digest = hashlib.sha256()
        with part.open("a+b") as copy:
            copy.seek(0)
            while chunk := copy.read(1 << 20):
                digest.update(chunk)
            start = copy.tell()
            for piece in place.read_chunks(name, at, start, "" if at else entry.version):
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
    with local_files.holding_lock(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            draft.mkdir(exist_ok=True)
        yield draft
    with contextlib.suppress(OSError):  # not empty: a different process has begun
        draft.rmdir()


def _unread(folder: Path) -> str:
    """Return the reason why an engine must not load the files in `folder`, as text; "" = loadable."""
    try:
        for one in folder.iterdir():
            if one.name.endswith(SUFFIXES):
                model_files.held(folder, one.name)
        model_files.check(folder)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
