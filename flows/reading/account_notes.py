"""Notes of the packs on accounts with vendors, such as the last drill: shown below offers and runs."""

import time
from collections.abc import Mapping

from infra.settings import Settings
from store import packs
from store.packs import AccountNotes


def of_accounts(settings: Settings, accounts: Mapping[str, str]) -> dict[str, AccountNotes]:
    """Return the notes of each pack that has some, by their name. accounts: ids of accounts by vendor."""
    now = time.time()
    return {name: packs.load(where)(settings, accounts, now) for name, where in packs.entries("account_notes").items()}
