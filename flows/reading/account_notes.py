"""The notes of packs on vendor accounts, such as the last drill, shown below offers and runs."""

import time
from collections.abc import Iterable

from infra.providers.by_name import own_providers
from infra.settings import VENDORS, Settings
from store import packs
from store.packs import AccountNotes


def of_accounts(settings: Settings, providers: Iterable[str]) -> dict[str, AccountNotes]:
    """Return the account notes of all packs, by note name, for the providers that are vendor accounts."""
    own, _ = own_providers(settings)
    vendors, now = [one for one in providers if one in (*VENDORS, *own)], time.time()
    return {name: packs.load(where)(settings, vendors, now) for name, where in packs.entries("account_notes").items()}
