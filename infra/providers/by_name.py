"""The providers by name: one table, extended by packs and by the user's extensions.

A provider's module is imported when the provider is opened, so that a command loads only the providers in use.
"""

from collections.abc import Mapping

from infra.errors import MissingKey, UsageError
from infra.providers import Market, Provider, extensions
from infra.settings import HELD, LOCAL, MARKET, OWN_MACHINES, VENDORS, Settings
from store import packs

PROVIDERS: Mapping[str, str] = {
    LOCAL: "infra.providers.local:Local",
    "ssh": "infra.providers.ssh:SshPools",
    "runpod": "infra.providers.runpod:RunPod",
    "lium": "infra.providers.lium:Lium",
    "shadeform": "infra.providers.shadeform:Shadeform",
}
OF_AN_EXTENSION = "infra.providers.own:OwnProvider"


def known() -> tuple[str, ...]:
    """Return the names of all providers except those of the user's extensions."""
    return (*OWN_MACHINES, *packs.providers(), *VENDORS)


def open_known(name: str, settings: Settings) -> Provider:
    """Open one of the `known` providers. Raise MissingKey for a vendor without a key."""
    if name in VENDORS:
        return open_market(name, settings)
    found: Provider = packs.load(PROVIDERS.get(name) or packs.providers()[name].where).of(settings)
    return found


def open_market(name: str, settings: Settings) -> Market:
    """Open the account with a vendor. Raise MissingKey without a key."""
    key = VENDORS[name]
    if not getattr(settings, key):
        raise MissingKey(
            f"{name}: no key is set; enter {key.upper()}: inv init {name}, or practise without a key: "
            f"inv rehearse --provider {name}"
        )
    found: Market = packs.load(PROVIDERS[name]).of(settings)
    return found


def open_own(name: str, settings: Settings) -> Market | None:
    """Open the provider of an extension; None without an extension of this name. Raise UsageError."""
    extension = extensions.find("provider", name, settings, (*known(), HELD, MARKET))
    if extension is None:
        return None
    if settings.rehearsal:
        raise UsageError(
            f"provider {name} comes from an extension, and a rehearsal simulates only vendors; "
            f"known: {', '.join(VENDORS)}"
        )
    found: Market = packs.load(OF_AN_EXTENSION)(extension, settings)
    return found
