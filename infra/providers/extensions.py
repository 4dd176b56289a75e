"""The user's extensions named in the settings, for the control side: looked up by kind and name.

`store.extensions` reads an `Extension` without running the code. Errors become UsageErrors in our own words. Light to
import.
"""

from collections.abc import Sequence

from infra.errors import UsageError
from infra.settings import Settings
from store import extensions
from store.extensions import Extension, ExtensionError, use

VARIABLE = "SLIPWAY_EXTENSIONS"


def find(kind: str, name: str, settings: Settings, ours: Sequence[str] = ()) -> Extension | None:
    """Return the extension with a `kind` of this name, or None. Raise UsageError."""
    if not settings.extensions:
        return None
    try:
        return extensions.find(settings.extensions, kind, name, ours)
    except ExtensionError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


def own_providers(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the names of the providers in extensions, and messages about unreadable extensions.

    No extension code runs. A rehearsal has no such providers.
    """
    found: list[str] = []
    problems: list[str] = []
    for word in extensions.words_of(settings.extensions) if not settings.rehearsal else ():
        try:
            extension = extensions.read(word)
            if "provider" in extension.adds:
                found.append(extension.name)
        except ExtensionError as error:
            problems.append(f"{VARIABLE}: {error}")
    return list(dict.fromkeys(found)), problems


def use_filter(name: str, settings: Settings) -> None:
    """Register the machine filter named by a request in this process. Raise UsageError for an unknown filter."""
    if name:
        found = find("filter", name, settings)
        if found is None:
            own = named(settings) or f"; {VARIABLE} lists the files that add filters (docs/extend.md)"
            raise UsageError(f"--machine-filter {name}: no extension has this name{own}")
        use(found)


def of_file(flag: str, word: str, kind: str) -> Extension:
    """Return the extension in the file named by a flag. Raise UsageError."""
    from pathlib import Path

    try:
        found = extensions.of_file(Path(word))
        extensions.require(found, kind)
        return found
    except ExtensionError as error:
        raise UsageError(f"{flag} {word}: {error}") from None


def named(settings: Settings) -> str:
    """Return a hint with the names in SLIPWAY_EXTENSIONS; "" for none."""
    listed = extensions.names(settings.extensions)
    return f"; {VARIABLE} has {', '.join(listed)}" if listed else ""
