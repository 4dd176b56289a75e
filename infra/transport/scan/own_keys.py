"""Keys of this installation: secret settings from the environment and from `.env`.

The scan refuses every file with the value of a key (12 letters or more), in any form, unless the user sends the file
explicitly.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.checkout import ROOT
from infra.settings import HOOK, is_secret, of_packs, read_dotenv, table
from infra.transport.scan.contents import OwnKey
from store.credentials import google_key

GOOGLE = "GOOGLE_CREDENTIALS"
ENV_FILES = (".env", "credentials/.env")


def of_installation(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> tuple[OwnKey, ...]:
    """Return the keys, with each value once. Raises UsageError for an unreadable `.env`."""
    rows = (*(one.metadata for one in table()), *(row for _, row in of_packs()))
    ours = {row["variable"] for row in rows if row["secret"]}
    found = [(name, value) for name, value in environ.items() if name in ours or name.startswith(HOOK)]
    for file in ENV_FILES:
        found += [(name, value) for name, value in read_dotenv(root / file).items() if name in ours or is_secret(name)]
    keys = {part: name for name, value in found for part in _parts(name, value)}
    return tuple(OwnKey(name, value) for value, name in keys.items())


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield the secret values of a variable: for a service account the private key, for a hook the address."""
    if name.startswith(HOOK):  # a hook has a kind and an address; only the address is secret
        yield from (word for word in value.split() if "://" in word)
        return
    if name != GOOGLE:
        yield value
        return
    try:
        yield str(json.loads(google_key(value))["private_key"])
    except (ValueError, KeyError, TypeError):
        return  # missing file or no service account: `store.backends.gs` reports the problem
