"""Registry of providers: opens a provider by name, as configured in the settings."""

import difflib
import logging
import threading

from infra.errors import MissingKey, SlipwayError, UsageError
from infra.providers import Provider, Vendors, by_name
from infra.providers.by_name import known_providers, open_known, open_own
from infra.settings import HELD, MARKET, VENDORS, Settings, pack_settings
from store import packs

MOST_OPEN = 8
OF_HELD_PODS = "infra.selection.held_machines:HeldPods"  # loaded by path, as in `by_name.PROVIDERS`: a higher layer

_open: dict[tuple[str, ...], Provider] = {}
_turn = threading.Lock()
_turns: dict[tuple[str, ...], threading.Lock] = {}


def open_provider(name: str, settings: Settings) -> Provider:
    """Open the provider with the given name. Raises UsageError for an unknown or unusable provider."""
    if name == HELD:
        held: Provider = packs.load(OF_HELD_PODS).from_settings(settings, vendors(settings))
        return held
    if found := open_own(name, settings):
        return found
    if name not in known_providers():
        if why := packs.missing_pack_message("providers", name):
            raise UsageError(f"provider {why}")
        near = difflib.get_close_matches(name, [*known_providers(), MARKET], 1)
        hint = f"did you mean {near[0]}? " if near else ""
        own = by_name.extensions_named(settings) or f"; {by_name.EXTENSIONS} adds a provider of your own"
        raise UsageError(f"unknown provider {name!r}; {hint}known: {', '.join(known_providers())}, {MARKET}{own}")
    return open_known(name, settings)


def provider(settings: Settings, name: str) -> Provider:
    """Return the provider with the given name from a cache, to connect to each machine only once.

    Raises UsageError.
    """
    keys = [getattr(settings, key) + getattr(settings, f"{vendor}_url") for vendor, key in VENDORS.items()]
    keys.append(settings.lium_self_end_key)
    about = (
        name,
        str(settings.pods),
        str(settings.pools),
        repr(pack_settings("providers", name, settings)),
        str(settings.state_file),
        settings.extensions,
        *keys,
    )
    with _turns.setdefault(about, threading.Lock()):  # an inventory may take long to open, and delays no other provider
        if (found := _open.get(about)) is None:
            found = open_provider(name, settings)
            with _turn:
                _open[about] = found
                if len(_open) > MOST_OPEN:
                    _open.pop(next(iter(_open)))
        return found


def names(settings: Settings, chosen: str) -> tuple[str, ...]:
    """Return the provider names for `chosen`: the name itself, or for "market" every vendor with a key.

    Raises MissingKey without any key.
    """
    if chosen != MARKET:
        return (chosen,)
    found = tuple(vendor for vendor, key in VENDORS.items() if getattr(settings, key))
    if not found:
        keys = ", ".join(key.upper() for key in VENDORS.values())
        raise MissingKey(
            f"provider {MARKET}: no key is set; enter one of {keys}: inv init, or practise without a key: inv rehearse"
        )
    return found


def candidates(settings: Settings, chosen: str = "") -> list[Provider]:
    """Return the providers for `chosen`, by default for the `provider` setting.

    Skips an unusable provider with a warning. Raises the first error if no provider can be opened.
    """
    found: list[Provider] = []
    errors: list[SlipwayError] = []
    for name in names(settings, chosen or settings.provider):
        try:
            found.append(provider(settings, name))
        except SlipwayError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for one in errors:
        logging.getLogger(__name__).warning("%s; this provider is left out", one)
    return found


def vendors(settings: Settings) -> Vendors:
    """Return a function from provider name to provider, for pods of earlier launches too."""
    return lambda name: provider(settings, name)
