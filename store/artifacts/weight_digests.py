"""Digest of the weights of a model: equal digests mean equal weight files."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from store import untrusted_input
from store.artifacts import model_files, vocabulary
from store.backends.backend import Backend
from store.manifest import MANIFEST, Manifest
from store.untrusted_input import UnusableDocument


def digest(folder: Path, sha256: Callable[[Path], str]) -> str:
    """Return the sha256 over names and digests of the weight files in a model folder. Raise UnusableDocument.

    The digests come from the manifest of the artifact, which the store has verified; `sha256` reads other files.
    """
    known = _in_manifest(folder)
    return digest_of({one.name: known.get(one.name) or sha256(one) for one in model_files.weight_files(folder)})


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the digest of a model by the sha256 of each weight file."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def digest_at(place: Backend, inside: str, manifest: Manifest, at: str) -> str:
    """Return the digest of the weights of an artifact at an address. Raise UnusableDocument, StoreError.

    inside: folder of the model in the artifact, "" or "hf/"; at: revision of the place.
    """
    known = {one.path.removeprefix(inside): one.sha256 for one in manifest.files if one.path.startswith(inside)}
    names = {model_files.WEIGHTS}
    if model_files.INDEX in known:
        names = indexed(place, inside, at)
    if missing := sorted(names - known.keys()):
        raise UnusableDocument(
            f"{place.uri} lacks {', '.join(missing[:5])}; weights are read from safetensors files only"
        )
    return digest_of({name: known[name] for name in names})


def indexed(place: Backend, inside: str, at: str) -> set[str]:
    """Return the names of the weight files in the index of a model. Raise UnusableDocument, StoreError."""
    content = place.read_small(f"{inside}{model_files.INDEX}", at)
    index = untrusted_input.mapping(content, model_files.HEADER_BYTES, model_files.HEADER_VALUES)
    return {str(one) for one in untrusted_input.typed(index, "weight_map", dict).values()}


def _in_manifest(folder: Path) -> Mapping[str, str]:
    """Return the sha256 by file name of a model folder, from the manifest of the artifact; {} without a manifest."""
    is_inner = folder.name == vocabulary.HF
    above, prefix = (folder.parent, f"{vocabulary.HF}/") if is_inner else (folder, "")
    try:
        files = Manifest.from_json(untrusted_input.content(above / MANIFEST)).files
    except (OSError, ValueError):
        return {}
    return {one.path.removeprefix(prefix): one.sha256 for one in files if one.path.startswith(prefix)}
