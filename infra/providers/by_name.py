"""The providers by name: one table, extended by packs and by the user's extensions named in the settings.

A provider's module is imported when the provider is opened, so that a command loads only the providers in use.
`store.extensions` reads an extension without running the code; errors become UsageErrors in our own words.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from infra.errors import MissingKey, UsageError
from infra.providers import Market, Provider
from infra.settings import HELD, LOCAL, MARKET, OWN_MACHINES, VENDORS, Settings
from store import extensions, packs
from store.extensions import Extension, ExtensionError, use
from store.packs import AccountNotes

PROVIDERS: Mapping[str, str] = {
    LOCAL: "infra.providers.local:Local",
    "ssh": "infra.providers.ssh:SshPools",
    "runpod": "infra.providers.runpod:RunPod",
    "lium": "infra.providers.lium:Lium",
    "shadeform": "infra.providers.shadeform:Shadeform",
}
OF_AN_EXTENSION = "infra.providers.own:OwnProvider"
EXTENSIONS = "SLIPWAY_EXTENSIONS"


def known_providers() -> tuple[str, ...]:
    """Return the names of all providers except those of the user's extensions."""
    return (*OWN_MACHINES, *packs.providers(), *VENDORS)


def open_known(name: str, settings: Settings) -> Provider:
    """Open one of the providers in `known_providers`. Raise MissingKey for a vendor without a key."""
    if name in VENDORS:
        return open_market(name, settings)
    found: Provider = packs.load(PROVIDERS.get(name) or packs.providers()[name].where).from_settings(settings)
    return found


def open_market(name: str, settings: Settings) -> Market:
    """Open the account with a vendor. Raise MissingKey without a key."""
    key = VENDORS[name]
    if not getattr(settings, key):
        raise MissingKey(
            f"{name}: no key is set; enter {key.upper()}: inv init {name}, or practise without a key: "
            f"inv rehearse --provider {name}"
        )
    found: Market = packs.load(PROVIDERS[name]).from_settings(settings)
    return found


def open_own(name: str, settings: Settings) -> Market | None:
    """Open the provider of an extension; None without an extension of this name. Raise UsageError."""
    extension = find_extension("provider", name, settings, (*known_providers(), HELD, MARKET))
    if extension is None:
        return None
    if settings.rehearsal:
        raise UsageError(
            f"provider {name} comes from an extension, and a rehearsal simulates only vendors; "
            f"known: {', '.join(VENDORS)}"
        )
    found: Market = packs.load(OF_AN_EXTENSION)(extension, settings)
    return found


def find_extension(kind: str, name: str, settings: Settings, ours: Sequence[str] = ()) -> Extension | None:
    """Return the extension with a `kind` of this name, or None. Raise UsageError."""
    if not settings.extensions:
        return None
    try:
        return extensions.find(settings.extensions, kind, name, ours)
    except ExtensionError as error:
        raise UsageError(f"{EXTENSIONS}: {error}") from None


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
            problems.append(f"{EXTENSIONS}: {error}")
    return list(dict.fromkeys(found)), problems


def use_filter(name: str, settings: Settings) -> None:
    """Register the machine filter named by a request in this process. Raise UsageError for an unknown filter."""
    if name:
        found = find_extension("filter", name, settings)
        if found is None:
            own = extensions_named(settings) or f"; {EXTENSIONS} lists the files that add filters (docs/extend.md)"
            raise UsageError(f"--machine-filter {name}: no extension has this name{own}")
        use(found)


def extension_of_file(flag: str, word: str, kind: str) -> Extension:
    """Return the extension in the file named by a flag. Raise UsageError."""
    from pathlib import Path

    try:
        found = extensions.of_file(Path(word))
        extensions.require(found, kind)
        return found
    except ExtensionError as error:
        raise UsageError(f"{flag} {word}: {error}") from None


def extensions_named(settings: Settings) -> str:
    """Return a hint with the names in SLIPWAY_EXTENSIONS; "" for none."""
    listed = extensions.names(settings.extensions)
    return f"; {EXTENSIONS} has {', '.join(listed)}" if listed else ""


def account_notes(settings: Settings, providers: Iterable[str]) -> dict[str, AccountNotes]:
    """Return the notes of packs on vendor accounts, such as the last drill, by note name, shown below offers and runs.

    Of `providers`, only vendor accounts count.
    """
    own, _ = own_providers(settings)
    vendors, now = [one for one in providers if one in (*VENDORS, *own)], time.time()
    return {name: packs.load(where)(settings, vendors, now) for name, where in packs.entries("account_notes").items()}
