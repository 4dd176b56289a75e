"""The adapter in `--adapter-from`: a folder, a repository of the hub or an artifact, checked before the plan. No torch.

The result is an `ImportedAdapter` with the settings and the shapes of the adapter; the configuration of the phase
compares them with the model. Of the hub, only `adapter_config.json` and the header of the tensors are read here; the
step `import` downloads the tensors.
"""

import functools
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import ConfigError
from infra.errors import UsageError
from infra.settings import Settings
from packs.adapters.control.flags import AdapterFlags
from packs.adapters.records.lora_config import ImportedAdapter
from packs.adapters.records.peft_format import (
    CONFIG,
    WEIGHTS,
    content_digest,
    read_adapter,
    read_files,
    shape_of,
)
from store import untrusted_input
from store.artifacts import model_files, vocabulary
from store.artifacts.artifacts import Store
from store.artifacts.model_files import CHANGED, TensorHeader
from store.backends.backend import Backend, open_place
from store.manifest import StoreError, check_name
from store.untrusted_input import UnusableDocument
from trainer.config import ImportSpec

HUB, STORE = "hf://", "store://"
OURS = "hf"  # folder of the adapter in an artifact
COMMIT_LENGTH = 40


@dataclass(frozen=True, kw_only=True)
class ResolvedFlags(AdapterFlags):
    """The flags, with the description of the adapter in `adapter_from`."""

    imported_adapter: ImportedAdapter | None = None


def resolve(flags: AdapterFlags, settings: Settings, init: ImportSpec | None) -> AdapterFlags:
    """Return the flags with the description of the adapter. Raises UsageError for an unusable adapter."""
    typed = flags.adapter_from
    if not typed:
        return flags
    try:
        found, origin = read(typed, settings.store)
        if init is not None:
            check_origin(found, origin, init)
    except (ConfigError, UnusableDocument, StoreError) as error:
        raise UsageError(f"--adapter-from {typed}: {error}") from None
    return ResolvedFlags(adapter=flags.adapter, adapter_from=typed, imported_adapter=found)


def read(typed: str, store: str) -> tuple[ImportedAdapter, str]:
    """Return the description of an adapter, and the commit of the adapted model, "" if unknown.

    Raises UsageError, ConfigError, UnusableDocument, StoreError.
    """
    if typed.startswith(HUB):
        return _of_hub(typed)
    folder = Path(typed).expanduser().absolute()
    if folder.is_dir():
        return _of_folder(folder, str(folder), "", content_digest(files_of(folder)))
    try:
        check_name(typed)
        found = Store(store).check(typed)
    except StoreError:
        found = None
    if found is None or (found.problem and not found.fingerprint):
        raise UsageError(
            f"--adapter-from {typed}: neither a folder nor an artifact of {store}; give a folder with {CONFIG}, "
            "hf://user/repo, or the name of an artifact (inv ckpt.list)"
        )
    if found.problem:
        raise StoreError(f"{store}: {found.problem}")
    return _of_folder(Store(store).path(found.name, found.fingerprint), f"{STORE}{typed}", found.fingerprint, "")


def files_of(folder: Path) -> Path:
    """Return the folder with the files of the adapter: `hf/` in an artifact of ours, else `folder`."""
    return folder / OURS if (folder / OURS / CONFIG).is_file() else folder


def _of_folder(folder: Path, source: str, revision: str, content: str) -> tuple[ImportedAdapter, str]:
    files = files_of(folder)
    said, header = read_files(files)
    changed = model_files.load(files, CHANGED) if (files / CHANGED).is_file() else {}
    return _described(said, header, changed, source, revision, content)


def _described(
    said: Mapping[str, Any],
    header: Mapping[str, TensorHeader],
    changed: Mapping[str, Any],
    source: str,
    revision: str,
    content: str,
) -> tuple[ImportedAdapter, str]:
    """Return the description by the content of the files; changed: `changed_model.json`, {} without the file."""
    adapter = read_adapter(said)
    layers, sides = shape_of(adapter, header)
    words = (changed.get("source") or changed.get("name"), said.get("base_model_name_or_path"))
    base, commit = next((one for one in words if one and type(one) is str), ""), said.get("revision")
    found = ImportedAdapter(
        marker=CONFIG,
        source=source,
        revision=revision,
        content=content,
        base=untrusted_input.printable(base),
        adapter=adapter,
        layers=layers,
        sides=sides,
    )
    return found, commit if type(commit) is str and len(commit) == COMMIT_LENGTH else ""


@functools.cache
def _of_hub(typed: str) -> tuple[ImportedAdapter, str]:
    repo = typed.removeprefix(HUB).strip("/").partition("@")[0]
    if repo.count("/") != 1:
        raise UsageError(f"--adapter-from {typed}: expected hf://user/repo or hf://user/repo@revision")
    place = open_place(typed)
    at = place.current_revision()
    there = place.listing(at=at)
    inside = inner_folder(there)
    if missing := [one for one in (CONFIG, WEIGHTS) if f"{inside}{one}" not in there]:
        raise UnusableDocument(f"the repository is not an adapter: {missing[0]} is missing")

    def small(name: str) -> dict[str, Any]:
        return untrusted_input.mapping(place.read_small(f"{inside}{name}", at), model_files.CONFIG_BYTES)

    changed = small(CHANGED) if f"{inside}{CHANGED}" in there else {}
    header = _header_of_hub(place, f"{inside}{WEIGHTS}", at, there[f"{inside}{WEIGHTS}"].size)
    return _described(small(CONFIG), header, changed, f"{HUB}{repo}", at, "")


def inner_folder(names: Collection[str]) -> str:
    """Return the folder of an adapter among the files of an address: `hf/` in an artifact of ours, else ""."""
    return f"{OURS}/" if f"{OURS}/{CONFIG}" in names else ""


def _header_of_hub(place: Backend, name: str, at: str, size: int) -> dict[str, TensorHeader]:
    """Return the header of the tensors in the file `name` without downloading the tensors."""
    start = place.get(name, 0, 1 << 20, at)
    length = 8 + min(int.from_bytes(start[:8], "little"), model_files.HEADER_BYTES)
    while len(start) < min(length, size) and (more := place.get(name, len(start), length, at)):
        start += more
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / WEIGHTS
        file.write_bytes(start[:length])
        os.truncate(file, size)
        return model_files.header(file)


class OtherCommit(ConfigError):
    """An adapter names another commit of the same model."""


def check_names(found: ImportedAdapter, commit: str, flag: str, source: str, revision: str) -> None:
    """Raise ConfigError if an adapter names a model of the hub other than `source`, the value of `flag`.

    Raises OtherCommit if only the commits differ.

    commit: commit of the model of the adapter; revision: commit of `source`; "" if unknown.
    """
    mine, theirs = source.removeprefix(HUB), found.base.removeprefix(HUB)
    if theirs.startswith(("/", ".", "~")) or "_checkpoints/" in theirs or {mine.count("/"), theirs.count("/")} != {1}:
        return  # a folder, or an artifact of a store
    if mine.lower() != theirs.lower():
        raise ConfigError(
            f"the adapter was trained on {theirs}, and {flag} is {mine}. Use {flag} hf://{theirs}; if both have "
            f"the same weights, download the adapter and change base_model_name_or_path in {CONFIG}"
        )
    if commit and revision and commit != revision:
        raise OtherCommit(
            f"the adapter was trained on commit {commit[:12]} of {mine}, and {flag} is commit "
            f"{revision[:12]}. Use {flag} hf://{theirs}@{commit}"
        )


def check_origin(found: ImportedAdapter, commit: str, init: ImportSpec) -> None:
    """Raise ConfigError for an adapter of a different model than `--init`, by the names or by the vocabulary.

    The names are compared if both are of the hub: the name of a folder says little about the model.
    """
    if init.source.startswith(HUB):
        check_names(found, commit, "--init", init.source, init.revision)
    if wrong := vocabulary.difference(Path(found.source), Path(init.source)):
        raise ConfigError(f"the adapter was trained with another vocabulary: {wrong}")
