"""A provider by its name, as the settings describe it."""

import difflib
from pathlib import Path

from infra.errors import UsageError
from infra.providers import Provider
from infra.providers.offers import open_market
from infra.settings import MARKET, VENDORS, Settings

KNOWN = ("local", "ssh", *VENDORS)


def open_provider(name: str, settings: Settings) -> Provider:
    """Raises UsageError for one that is not known or cannot be used."""
    if name not in KNOWN:
        near = difflib.get_close_matches(name, [*KNOWN, MARKET], 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"provider {name!r} is not known; {hint}known: {', '.join(KNOWN)}, {MARKET}")
    if name == "ssh":
        from infra.providers.ssh import SshPools

        return SshPools.of(settings)
    if name == "local":
        from infra.providers.local import Local

        return Local(Path(settings.pods))
    return open_market(name, settings)
