"""Models stored as a change of another model: a folder that joins the change with the changed model, and the export."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from infra.errors import UsageError
from store.artifacts.artifacts import Store
from store.artifacts.model_files import CHANGED
from store.manifest import MANIFEST, Artifact

BASE = "base"  # read by trainer.model.changes


def joined_folder(store: Store, found: Artifact) -> Path:
    """Return the folder of a model; for a change of another model, a cached folder with links to both artifacts.

    Raise UsageError if the store lacks the changed model.
    """
    folder, said = store.path(found.name, found.fingerprint), found.about.get("changes")
    if not isinstance(said, Mapping):
        return folder
    name, fingerprint = str(said.get("name")), str(said.get("fingerprint"))
    base = store.find(name, fingerprint)
    if base.problem:
        raise UsageError(
            f"{found.name} changes the model {name} ({fingerprint[:12]}), and {store.uri} does not have this model: "
            f"{base.problem}. Copy the model into the store: inv ckpt.push {name} --to {store.uri}"
        )
    links = {"hf": folder / "hf", MANIFEST: folder / MANIFEST, BASE: store.path(name, fingerprint)}
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway" / "models"
    target = home / hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:24]
    if not target.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=home))
        for link, place in links.items():
            (draft / link).symlink_to(place.absolute())
        try:
            draft.rename(target)
        except OSError:  # another process has made the same folder
            shutil.rmtree(draft)
    return target


def is_change(folder: Path) -> bool:
    """Return whether a Hugging Face folder holds a change of another model."""
    return (folder / CHANGED).is_file()


def copy_change(folder: Path, to: Path) -> None:
    """Copy a Hugging Face folder with a change to a new folder. Raise UsageError."""
    if to.exists():
        raise UsageError(f"{to} exists already")
    shutil.copytree(folder, to)
