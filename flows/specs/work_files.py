"""The YAML files of kinds of work that packs add to launches: told from files of flags by their keys.

In: a path. Out: the entry of the kind. Nothing of a pack is loaded.
"""

from pathlib import Path

from infra import strict_yaml
from infra.errors import UsageError
from store import packs
from store.packs import PackWork


def kind(path: Path) -> PackWork | None:
    """Return the kind of a file; None for another file, and for one that cannot be opened.

    Raises UsageError for a file of a pack that is not there.
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
    """Return in words which kind of file has a key that is no flag; "" for an unknown key."""
    return next(filter(None, (packs.load(entry.about_key)(key) for entry in packs.works() if entry.about_key)), "")
