"""Digest of the weights of a model: equal digests mean equal weight files."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from store import untrusted_input
from store.artifacts import model_files, vocabulary
from store.manifest import MANIFEST, Manifest


def digest(folder: Path, sha256: Callable[[Path], str]) -> str:
    """Return the sha256 over names and digests of the weight files in a model folder. Raise UnusableDocument.

    The digests come from the manifest of the artifact, which the store has verified; `sha256` reads other files.
    """
    known = _in_manifest(folder)
    digests = {one.name: known.get(one.name) or sha256(one) for one in model_files.weight_files(folder)}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _in_manifest(folder: Path) -> Mapping[str, str]:
    """Return the sha256 by file name of a model folder, from the manifest of the artifact; {} without a manifest."""
    is_inner = folder.name == vocabulary.HF
    above, prefix = (folder.parent, f"{vocabulary.HF}/") if is_inner else (folder, "")
    try:
        files = Manifest.from_json(untrusted_input.content(above / MANIFEST)).files
    except (OSError, ValueError):
        return {}
    return {one.path.removeprefix(prefix): one.sha256 for one in files if one.path.startswith(prefix)}
