"""The user's own code that the settings name, for the control side: found when it is used, refused in our own words.

In: a kind, a name, the settings. Out: an `Extension`, which `store.extensions` has read and not run. Light to import.
"""

from collections.abc import Sequence

from infra.errors import UsageError
from infra.settings import Settings
from store import extensions
from store.extensions import Extension, ExtensionError, use

VARIABLE = "SLIPWAY_EXTENSIONS"


def find(kind: str, name: str, settings: Settings, ours: Sequence[str] = ()) -> Extension | None:
    """Return the extension that adds a `kind` called so; None where none is called so. Raises UsageError."""
    if not settings.extensions:
        return None
    try:
        return extensions.find(settings.extensions, kind, name, ours)
    except ExtensionError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


def own_providers(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the names of the providers that extensions add, and in words which extensions cannot be read.

    No extension is run for that. A rehearsal has none.
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
    """Register the filter of machines that a request names in this process. Raises UsageError."""
    if name:
        found = find("filter", name, settings)
        if found is None:
            own = named(settings) or f"; {VARIABLE} lists the files that add some (docs/extend.md)"
            raise UsageError(f"--machine-filter {name}: no extension is called so{own}")
        use(found)


def of_file(flag: str, word: str, kind: str) -> Extension:
    """Return the extension of the file that a flag names. Raises UsageError."""
    from pathlib import Path

    try:
        found = extensions.of_file(Path(word))
        extensions.require(found, kind)
        return found
    except ExtensionError as error:
        raise UsageError(f"{flag} {word}: {error}") from None


def named(settings: Settings) -> str:
    """Return in words what else may be meant: the names in SLIPWAY_EXTENSIONS; "" for none."""
    listed = extensions.names(settings.extensions)
    return f"; {VARIABLE} has {', '.join(listed)}" if listed else ""
