"""The keys of this installation: secrets of the settings, from the environment and from `.env`.

A file that holds the value of one of them never leaves this machine unnoticed, whatever its form.
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
    """Return the keys, each value once. Raises UsageError for an `.env` that cannot be read."""
    rows = (*(one.metadata for one in table()), *(row for _, row in of_packs()))
    ours = {row["variable"] for row in rows if row["secret"]}
    found = [(name, value) for name, value in environ.items() if name in ours or name.startswith(HOOK)]
    for file in ENV_FILES:
        found += [(name, value) for name, value in read_dotenv(root / file).items() if name in ours or is_secret(name)]
    keys = {part: name for name, value in found for part in _parts(name, value)}
    return tuple(OwnKey(name, value) for value, name in keys.items())


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield the secret values of a variable: of a service account, its private key instead of the path or the JSON."""
    if name.startswith(HOOK):  # its kind, and an address that needs no other key
        yield from (word for word in value.split() if "://" in word)
        return
    if name != GOOGLE:
        yield value
        return
    try:
        yield str(json.loads(google_key(value))["private_key"])
    except (ValueError, KeyError, TypeError):
        return  # a path that leads nowhere, or no service account: `store.backends.gs` says what is wrong
