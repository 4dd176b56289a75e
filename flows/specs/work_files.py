"""Detect YAML files of the kinds of work that packs add to launches, by the keys of the files.

The result for a path is the entry of the kind. No module of a pack is loaded.
"""

from pathlib import Path

from infra import strict_yaml
from infra.errors import UsageError
from store import packs
from store.packs import PackWork


def kind(path: Path) -> PackWork | None:
    """Return the kind of a file; None for a flag file, or for a file without read access.

    Raises UsageError for a file of a missing pack.
    """
    try:
        documents = strict_yaml.documents(path)
    except OSError:
        return None
    keys = {key for one in documents if isinstance(one.said, dict) for key in one.said}
    for key in sorted(keys & {*packs.words("file_keys")}):
        if why := packs.lacking("file_keys", key):
            raise UsageError(f"{path}: {why}")
    return next((entry for entry in packs.works() if keys & {*entry.file_keys}), None)


def about_key(key: str) -> str:
    """Return a message about the kind of file that has this key; "" for an unknown key."""
    return next(filter(None, (packs.load(entry.about_key)(key) for entry in packs.works() if entry.about_key)), "")
